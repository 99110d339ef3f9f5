"""The mix stage: which image each token or pixel comes from, drawn once and applied to inputs and targets alike."""
