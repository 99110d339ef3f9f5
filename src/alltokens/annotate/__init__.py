"""The annotate stage: what a classifier says of every cell of an image; hands on a label store."""
