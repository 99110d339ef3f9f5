"""The objectives stage: a batch to losses, the model called inside; all that the trainer is told of what is learned."""
