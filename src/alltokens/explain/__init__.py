"""The explain stage: pictures of what labels and models say of an image, handed on to reports and commands."""
