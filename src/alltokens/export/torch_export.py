"""A model as a .pt2 file: torch.export's program, which torch loads without our code."""

from pathlib import Path

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from alltokens.export.scores import Record, Scores, Written, write_checked
from alltokens.models.weights import Model


def write_torch_export(model: Model, about: Record, path: Path) -> Written:
    """Write the program, and check what torch loads of it."""

    def load(name: str) -> nn.Module:
        with Path(name).open("rb") as file:
            return torch.export.load(file).module()

    difference = write_checked(
        path, lambda file: torch.export.save(program(model), file, extra_files=about.as_text()), load, model
    )
    return Written(difference, (f'load it with torch.export.load("{path}").module()',))


@torch.no_grad()
def program(model: Model) -> ExportedProgram:
    """The scores of a batch of any size as one graph."""
    config = model.config
    images = torch.zeros(2, config.channels, *config.image_size)
    shapes = {"images": {0: Dim("batch", min=1)}}
    exported = torch.export.export(Scores(model).eval(), (images,), dynamic_shapes=shapes)
    for node in exported.graph_module.graph.nodes:
        # Where the code lies on this machine would be a third of the graph's text, and is nobody else's business.
        node.meta.pop("stack_trace", None)
    return exported
