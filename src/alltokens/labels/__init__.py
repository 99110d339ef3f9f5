"""The labels stage: what an annotator says of every cell of an image, handed on as a sparse target for every token."""
