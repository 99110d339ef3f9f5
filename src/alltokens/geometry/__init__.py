"""The first stage: the geometry an image went through, as one affine map, and its pixels; hands on `View`."""
