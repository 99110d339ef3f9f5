"""The train stage: an objective's parameters improved step by step; hands on a run folder."""
