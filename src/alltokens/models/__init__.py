"""The models stage: one vision transformer whose axes are fields, and every published model; hands on `Prediction`."""
