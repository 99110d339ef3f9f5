"""A demonstration that needs no data: scenes of handwritten digits, an annotator, and two models side by side."""
