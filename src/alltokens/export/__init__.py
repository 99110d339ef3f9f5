"""After training: a model becomes a file or folder that others load, and is handed on only if it answers as before."""
