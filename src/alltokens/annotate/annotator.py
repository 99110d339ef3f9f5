"""Annotators by name: classifiers that answer for every cell of an image, never with weights drawn at random."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import cast

import timm
import torch
from torch import nn

from alltokens.annotate.class_map import class_names
from alltokens.annotate.dense import DenseTimm, DenseViT, free_stride, require_placeless_head
from alltokens.annotate.pip_weights import PIP_MODELS, read_pip_weights
from alltokens.annotate.presets import PRESETS
from alltokens.errors import UserError, by, did_you_mean, require
from alltokens.models.config import ViTConfig
from alltokens.models.convert import HEADS
from alltokens.models.factory import TIMM
from alltokens.models.loading import as_stored, fitting, heads_of, is_ours, load, stored_classes
from alltokens.models.timm_model import TimmClassifier, TimmConfig, published, timm_config
from alltokens.models.usage import Channels, Interpolation
from alltokens.models.vit import VisionTransformer
from alltokens.models.weights import ModelConfig, WeightFile, read_weights
from alltokens.models.zoo import INTERPOLATION, MEAN, MODELS, STANDARD_DEVIATION, find


@dataclass(frozen=True)
class Annotator:
    """A network that answers for every cell of an image, and how it wants its images."""

    name: str
    """As it was asked for."""
    module: nn.Module
    """Normalised images [b, 3, H, W] to logits [b, classes, h, w]; in evaluation mode, without gradients."""
    classes: tuple[str, ...]
    """As its file calls them; otherwise WordNet ids where the head is one of ImageNet's, else "0", "1", ..."""
    image_size: tuple[int, int]
    """Height and width at which it sees an image."""
    stride: int
    """Pixels between cells."""
    any_size: bool
    """Whether it takes images of other sizes, rectangles included, too."""
    mean: Channels
    std: Channels
    interpolation: Interpolation
    weights_sha256: str
    """Of its tensors, whatever file they came from."""


def open_annotator(
    name: str, checkpoint: Path | None = None, size: int | None = None, others: Sequence[str] = ()
) -> Annotator:
    """The annotator of that name, or in a weight file that says what it is; `size` is the side of what it sees.

    `others` are words that the caller knows, for what is said of a name that nobody does.
    """
    require(size is None or size > 0, f"the size of an annotator's images must be at least 1 pixel; got {size}")
    if name in PIP_MODELS:
        require(
            checkpoint is None,
            f"'{name}' has its weights from pip; for '{checkpoint}' ask for {TIMM}{PIP_MODELS.get(name)} instead",
        )
        return from_timm(name, PIP_MODELS[name], read_pip_weights(name), size)
    if name in PRESETS:
        preset = PRESETS[name]
        return from_timm(name, preset.timm_name, timm_weights(preset.timm_name, checkpoint), size or preset.side)
    if name.startswith(TIMM):
        timm_name = name.removeprefix(TIMM)
        return from_timm(name, timm_name, timm_weights(timm_name, checkpoint), size)
    if name in MODELS:
        if checkpoint is None:
            raise UserError(f"no weights come with '{name}'; give a weight file of it with --checkpoint")
        return from_ours(name, find(name), read_weights(checkpoint), size)
    if Path(name).exists():
        require(checkpoint is None, f"'{name}' has weights itself; leave out --checkpoint, got '{checkpoint}'")
        return from_file(name, size)
    known = [*others, *PRESETS, *PIP_MODELS, *MODELS, *(f"{TIMM}{model}" for model in timm.list_models())]
    raise UserError(f"'{name}' is neither an annotator nor a file{did_you_mean(name, known)}")


def from_file(name: str, size: int | None) -> Annotator:
    """An annotator from a weight file alone, or the one in a folder."""
    file = read_weights(Path(name, "model.safetensors") if Path(name).is_dir() else name)
    if isinstance(file.config, TimmConfig):
        return from_timm(name, file.config.name, file, size)
    if file.config is not None:
        return from_ours(name, file.config, file, size)
    fits = fitting(file)
    if not fits:
        raise UserError(
            f"'{name}' does not say which model it is, and fits none known by name; name the annotator, such as "
            f"{TIMM}resnet50, and give the file with --checkpoint"
        )
    return from_ours(name, as_stored(file, find(fits[0])), file, size)


def timm_weights(timm_name: str, checkpoint: Path | None) -> WeightFile:
    """The weights of a file, or those that timm publishes."""
    known = published(timm_name)
    if checkpoint is not None:
        return read_weights(checkpoint)
    require(
        bool(known.has_weights), f"timm publishes no weights of '{timm_name}'; give a weight file with --checkpoint"
    )
    require(
        known.num_classes > 0,
        f"the weights that timm publishes of '{timm_name}' have no classifier; give a weight file with --checkpoint",
    )
    try:
        state = timm.create_model(timm_name, pretrained=True).state_dict()
    except Exception as error:  # no network, no disk, a file that is gone: each library has its own exceptions
        reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        raise UserError(
            f"the weights that timm publishes of '{timm_name}' could not be had ({reason}); "
            "give a weight file with --checkpoint"
        ) from error
    return WeightFile(Path(timm_name), state, None)


def from_timm(name: str, timm_name: str, file: WeightFile, size: int | None) -> Annotator:
    """A classifier of timm's; the token head beside it, where the file has one, was trained to answer for a cell."""
    known, config = published(timm_name), timm_config(timm_name)
    if isinstance(file.config, TimmConfig):
        config = replace(config, image_size=file.config.image_size, output_stride=file.config.output_stride)
    require_three_channels(name, file.config or config)
    stride = free_stride(config)
    if size is not None and stride is not None and size < stride:
        raise UserError(f"'{name}' has a cell for each {stride} pixels; a size of {size} gives none")
    config = replace(
        config,
        classes=stored_classes(file, config),
        image_size=(size, size) if size is not None else default_size(config.image_size, known.crop_pct, stride),
        token_head=file.config is not None and file.config.token_head,
    )
    model = load(file, config, name)
    assert isinstance(model, TimmClassifier)
    prefix = "model." if file.config is None else ""
    heads = {key: x for key, x in model.state_dict().items() if key.rpartition(".")[0] in heads_of(model)}
    require_heads(file, {key.removeprefix(prefix): x.shape for key, x in heads.items()})
    if model.token_head is None:
        require_placeless_head(model.model.eval(), model.layout, name)
    module = frozen(DenseTimm(model))
    mean, std = normalization(file, config)
    return Annotator(
        name=name,
        module=module,
        classes=names_of_classes(file, config),
        image_size=config.image_size,
        stride=stride or config.image_size[0] // model.grid[0],
        any_size=stride is not None,
        mean=mean,
        std=std,
        interpolation=cast(Interpolation, known.interpolation) if file.usage is None else file.usage.interpolation,
        weights_sha256=fingerprint(module),
    )


def from_ours(name: str, config: ViTConfig, file: WeightFile, size: int | None) -> Annotator:
    """One of our models with the token head that it was trained with."""
    trained = file.config or config
    require_three_channels(name, trained)
    require(trained.token_head, f"'{name}' has no token head, so it has no answer for a cell; annotate with another")
    config = replace(
        config,
        classes=stored_classes(file, config),
        image_size=trained.image_size if size is None else (size, size),
        token_head=True,
    )
    # Before loading, which would warn that it draws the head at random.
    head = "token_head" if is_ours(file.state) else HEADS["token_head"]
    require_heads(file, {f"{head}.weight": (config.classes, config.width), f"{head}.bias": (config.classes,)})
    model = load(file, config, name)
    assert isinstance(model, VisionTransformer)
    module = frozen(DenseViT(model))
    mean, std = normalization(file, config)
    return Annotator(
        name=name,
        module=module,
        classes=names_of_classes(file, config),
        image_size=config.image_size,
        stride=config.stem.patch,
        any_size=False,
        mean=mean,
        std=std,
        interpolation=cast(Interpolation, INTERPOLATION) if file.usage is None else file.usage.interpolation,
        weights_sha256=fingerprint(module),
    )


def normalization(file: WeightFile, config: ModelConfig) -> tuple[Channels, Channels]:
    """Mean and standard deviation: those of the model's training where the file says them, else the published ones."""
    if file.usage is not None:
        return file.usage.mean, file.usage.std
    if isinstance(config, TimmConfig):
        known = published(config.name)
        return cast(Channels, known.mean), cast(Channels, known.std)
    return MEAN, STANDARD_DEVIATION


def names_of_classes(file: WeightFile, config: ModelConfig) -> tuple[str, ...]:
    """As the file calls them, else by their number."""
    return class_names(config.classes) if file.usage is None else file.usage.classes


def default_size(own: tuple[int, int], crop_ratio: float, stride: int | None) -> tuple[int, int]:
    """The size at which the whole image has the scale of a centre crop of the network's own size, up to whole cells."""
    if stride is None:
        # Positions, or weights for each place, are made for this size.
        return own
    height, width = (ceil(round(side / crop_ratio) / stride) * stride for side in own)
    return height, width


def require_three_channels(name: str, config: ModelConfig) -> None:
    """Photos have three; a file of ours may be for another number."""
    require(config.channels == 3, f"'{name}' takes images of {config.channels} channels; an annotator sees 3")


def require_heads(file: WeightFile, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a file without the head that annotates, which loading would draw at random."""
    for key, shape in shapes.items():
        if key not in file.state or tuple(file.state[key].shape) != tuple(shape):
            raise UserError(f"'{file.path}' has no {key} of {by(shape)}, without which there is no annotator")


def frozen(module: nn.Module) -> nn.Module:
    """In evaluation mode, without gradients, in float32 whatever the file has."""
    return module.float().eval().requires_grad_(False)


def fingerprint(module: nn.Module) -> str:
    """SHA-256 over the names, types, shapes and bytes of all tensors, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
