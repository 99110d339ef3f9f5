"""A model as one self-contained ONNX file."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from alltokens.errors import UserError
from alltokens.export.scores import Record, Written, write_checked
from alltokens.export.torch_export import program
from alltokens.models.weights import Model

LARGEST_FILE = 2**31
"""Bytes that one protobuf message, and so one ONNX file, stays below."""
ROOM_FOR_GRAPH = 2**24
"""More than the operations of any model here take."""


def write_onnx(model: Model, about: Record, path: Path) -> Written:
    """Write the model, and check what onnxruntime answers with it."""
    require_onnx()
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size > LARGEST_FILE - ROOM_FOR_GRAPH:
        raise UserError(
            f"the weights of '{about.model}' are {size / 1e9:.1f} GB, more than the 2 GB that one ONNX file holds; "
            "--format torch-export has no such limit"
        )
    difference = write_checked(
        path, lambda file: file.write(onnx_model(model, about).SerializeToString()), Session, model
    )
    return Written(difference, (f'load it with onnxruntime.InferenceSession("{path}")',))


def require_onnx() -> None:
    """The packages are an extra."""
    try:
        import onnx  # noqa: F401 (all three are only looked for)
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(
            "--format onnx needs onnx, onnxscript and onnxruntime; install them with: pip install 'alltokens[onnx]'"
        ) from error


def onnx_model(model: Model, about: Record) -> Any:
    """The model as ONNX's own message, with what goes with it in its metadata."""
    try:
        exported = torch.onnx.export(
            program(model),
            input_names=["images"],
            output_names=["scores"],
            dynamic_shapes={"images": {0: "batch"}},
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        raise UserError(
            f"torch cannot write '{about.model}' as ONNX ({first_cause(error)}); --format torch-export may do"
        ) from error
    assert exported is not None
    for node in exported.model.graph.all_nodes():
        # The tracer's notes on where each operation comes from outweigh the operations themselves.
        node.metadata_props.clear()
    exported.model.metadata_props.update(about.as_text())
    return exported.model_proto


def first_cause(error: BaseException) -> str:
    """What went wrong first, in the exporter's own words."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).splitlines()[0]


class Session:
    """An ONNX file that the checker has passed, in onnxruntime, called with tensors."""

    def __init__(self, path: str) -> None:
        import onnx
        from onnxruntime import InferenceSession

        onnx.checker.check_model(path, full_check=True)
        self.session = InferenceSession(path, providers=["CPUExecutionProvider"])

    def __call__(self, images: Tensor) -> Tensor:
        return torch.from_numpy(self.session.run(["scores"], {"images": images.numpy()})[0])
