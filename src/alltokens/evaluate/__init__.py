"""The evaluate stage: what a model answers on held-out images, handed on as one table from which every figure comes."""
