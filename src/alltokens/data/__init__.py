"""The data stage: images and labels in the order of an epoch, handed on as batches that any run makes alike."""
