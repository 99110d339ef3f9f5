"""The sources stage: where images come from; hands on a `Source`, whose images have keys and classes."""
