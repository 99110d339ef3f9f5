"""What happens to a training image: one view drawn from timm's distributions, then changes of colour in their order."""

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from typing import Any, Literal

import torch
from PIL import Image
from timm.data.auto_augment import AugmentOp, RandAugment, auto_augment_transform, rand_augment_transform
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch import Tensor

from alltokens.augment import photometric
from alltokens.augment.geometric import GEOMETRIC
from alltokens.augment.photometric import KINDS, Operation
from alltokens.errors import require
from alltokens.geometry import resample
from alltokens.geometry.view import Number, View
from alltokens.shapes import UInt8

Record = tuple[Operation, ...]

# timm itself passes over a section without a number, and takes any name of a set of operations for the usual one.
POLICY = re.compile(
    r"(rand(-([mn]|mmax)\d+|-(p|mstd)\d+(\.\d+)?|-inc[01]|-t(weights|3aw?))*|((original|v0)r?|3a)(-mstd\d+(\.\d+)?)*)"
)


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """The augmentation of a recipe; names and defaults are timm's."""

    scale: tuple[float, float] = (0.08, 1.0)
    """Least and largest share of the image's area in the crop."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Least and largest width over height of the crop."""
    interpolation: Literal["random", "bilinear", "bicubic"] = "random"
    """How pixels are resampled; random is one of the two for each image."""
    hflip: float = 0.5
    """Chance to exchange left and right."""
    vflip: float = 0.0
    """Chance to exchange top and bottom."""
    policy: str | None = "rand-m9-mstd0.5-inc1"
    """timm's string for RandAugment (rand-...), AutoAugment (original, v0, ...) or three-augment (3a)."""
    color_jitter: float = 0.0
    """Brightness, contrast and saturation each vary by this much."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """What fills the canvas outside the image, as a share of white."""

    def __post_init__(self) -> None:
        for name in ("scale", "ratio"):
            low, high = getattr(self, name)
            require(
                0 < low <= high < inf,
                f"{name} must be two finite numbers above 0, the smaller first; got {name}={(low, high)}",
            )
        for name in ("hflip", "vflip"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} must be between 0 and 1; got {name}={value}")
        require(
            0 <= self.color_jitter < inf,
            f"color_jitter must be a finite number of at least 0; got color_jitter={self.color_jitter}",
        )
        require(all(map(isfinite, self.mean)), f"mean must be three finite numbers; got mean={self.mean}")

    @property
    def fill(self) -> tuple[int, int, int]:
        """The mean as a colour."""
        red, green, blue = (min(255, round(255 * value)) for value in self.mean)
        return red, green, blue


@dataclass(frozen=True)
class Draw:
    """Everything random about one image."""

    view: View
    interpolation: Literal["bilinear", "bicubic"]
    operations: Record
    """Changes of colour, in the order they were drawn."""
    fill: tuple[int, int, int]
    crop: tuple[float, float, float, float]
    """Top, left, height and width of the crop that the view begins with, in parts of the image."""


class Augment:
    """Draws views of this height and width, and operations, as timm's transforms for the same strings do."""

    def __init__(self, config: AugmentConfig, size: tuple[int, int]) -> None:
        self.config, self.size = config, size
        self.policy = recording_policy(config, size)

    def draw(self, height: int, width: int, generator: torch.Generator) -> Draw:
        """What is done to one image of this size."""
        config = self.config
        with timms_randomness(generator):
            canvas = torch.empty(1, height, width, device="meta")
            top, left, rows, columns = RandomResizedCropAndInterpolation.get_params(canvas, config.scale, config.ratio)
            # Of an image of a pixel or two timm may take nothing.
            rows, columns = max(1, rows), max(1, columns)
            top, left = min(top, height - rows), min(left, width - columns)
            view = View.of(height, width).crop(top, left, rows, columns).resize(*self.size)
            crop = top / height, left / width, rows / height, columns / width
            interpolation: Any = config.interpolation
            if interpolation == "random":
                interpolation = random.choice(("bilinear", "bicubic"))
            view = view.hflip() if random.random() < config.hflip else view
            view = view.vflip() if random.random() < config.vflip else view
            drawn = drawn_by(self.policy) + jitter(config.color_jitter)
            operations = []
            for operation in drawn:
                if operation.kind in GEOMETRIC:
                    view = GEOMETRIC[operation.kind](view, *operation.arguments)
                else:
                    operations.append(operation)
            return Draw(view, interpolation, tuple(operations), config.fill, crop)


def apply(draw: Draw, image: Image.Image) -> Image.Image:
    """The image as it was drawn: resampled once, then recoloured."""
    canvas = draw.view.apply(image, draw.interpolation, draw.fill)
    return photometric.apply_pillow(canvas, draw.operations)


def apply_batch(
    draws: Sequence[Draw], images: UInt8[Tensor, "b 3 H W"], padded: bool = False
) -> UInt8[Tensor, "b 3 h w"]:
    """Images of one size on any device as they were drawn; where they are padded, each is as large as its view says."""
    canvases = images.new_empty(len(draws), 3, *draws[0].view.size)
    ways = [(draw.interpolation, draw.fill) for draw in draws]
    for way in set(ways):
        places = [index for index, other in enumerate(ways) if other == way]
        where = resample.sent(torch.tensor(places), images.device)
        canvases[where] = resample.apply_batch(images[where], [draws[index].view for index in places], *way, padded)
    return photometric.apply_batch(canvases, [draw.operations for draw in draws])


def recording_policy(config: AugmentConfig, size: tuple[int, int]) -> Any:
    """timm's policy whose operations, instead of changing an image, add to a record what they would do."""
    if config.policy is None:
        return None
    require(
        POLICY.fullmatch(config.policy) is not None,
        f"policy must be one of timm's strings, such as rand-m9-mstd0.5-inc1, v0 or 3a; got '{config.policy}'",
    )
    settings = {"translate_const": int(min(size) * 0.45), "img_mean": config.fill}
    create = rand_augment_transform if config.policy.startswith("rand") else auto_augment_transform
    policy = create(config.policy, settings)
    groups: list[list[Any]] = [policy.ops] if hasattr(policy, "ops") else policy.policy
    for operation in (operation for group in groups for operation in group):
        operation.aug_fn = partial(add_to_record, KINDS[operation.name])
    return policy


def drawn_by(policy: Any) -> Record:
    """What a recording policy would do to one image."""
    if isinstance(policy, RandAugment):
        record: Record = ()
        for operation in chosen(policy):
            record = operation(record)
        return record
    return () if policy is None else policy(())


def chosen(policy: RandAugment) -> list[AugmentOp]:
    """Operations of one image: with weights, none comes twice.

    timm has NumPy choose, with the same chances; to put NumPy's global state back would take longer than all the rest.
    """
    if policy.choice_weights is None:
        return random.choices(policy.ops, k=policy.num_layers)
    weights, places = list(policy.choice_weights), range(len(policy.ops))
    operations = []
    for _ in range(policy.num_layers):
        (place,) = random.choices(places, weights)
        operations.append(policy.ops[place])
        weights[place] = 0.0
    return operations


def add_to_record(kind: str, record: Record, *arguments: Number, **_pillow: Any) -> Record:
    """Stands for timm's function of that kind."""
    if kind == "gaussian_blur_rand":
        # The only operation of timm's that draws while it is applied.
        return (*record, Operation("gaussian_blur", (random.uniform(0.1, 2.0 * arguments[0]),)))
    return (*record, Operation(kind, arguments))


def jitter(strength: float) -> Record:
    """torchvision's ColorJitter without hue: three changes in random order."""
    if strength == 0:
        return ()
    kinds = random.sample(["brightness", "contrast", "color"], 3)
    return tuple(Operation(kind, (random.uniform(max(0, 1 - strength), 1 + strength),)) for kind in kinds)


@contextmanager
def timms_randomness(generator: torch.Generator) -> Iterator[None]:
    """Let timm, which draws from Python's global state, draw from the generator; the state comes back."""
    state = random.getstate()
    random.seed(int(torch.randint(2**32, (), generator=generator)))
    try:
        yield
    finally:
        random.setstate(state)
