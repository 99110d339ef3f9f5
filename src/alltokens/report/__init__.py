"""The report stage: what a run and its pictures look like, handed on as single HTML files."""
