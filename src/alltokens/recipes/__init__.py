"""The recipes stage: whole configs by name, each a row of a paper's table; hands a `TrainConfig` to the trainer."""
