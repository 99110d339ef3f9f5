"""The objectives stage: what a model is trained to do, `objective(batch) -> Losses`, which is all a trainer knows."""
