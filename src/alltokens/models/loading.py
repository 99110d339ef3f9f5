"""A state dict in any layout we know becomes a model, whatever its image size and classes."""

import sys
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from math import isqrt, prod

import torch
from timm.models import get_pretrained_cfg
from torch import Tensor

from alltokens.errors import UserError, require
from alltokens.models.config import ViTConfig
from alltokens.models.convert import HEADS, from_published, gains_of, to_published, unpublished
from alltokens.models.resize import renew_heads, set_classes, set_image_size
from alltokens.models.timm_model import TimmClassifier, TimmConfig
from alltokens.models.vit import VisionTransformer
from alltokens.models.weights import Model, ModelConfig, WeightFile
from alltokens.models.zoo import MODELS

CALLER = 5
"""Where, seen from `warn_of_heads`, whoever asked the factory for a model stands."""
CHANGEABLE = {
    *("image_size", "classes", "token_head", "token_weight"),
    *("drop_path", "drop_path_rule", "dropout", "attention_dropout", "head_dropout"),
}
ARCHITECTURE = [field.name for field in fields(ViTConfig) if field.name not in CHANGEABLE]
"""Fields of a config that its weights depend on, whatever is done with them after loading."""


def build(config: ModelConfig) -> Model:
    """The model of a config, with fresh weights."""
    return VisionTransformer(config) if isinstance(config, ViTConfig) else TimmClassifier(config)


def load(file: WeightFile, config: ModelConfig, name: str) -> Model:
    """The model with the file's weights, adapted to the config's image size and classes."""
    if file.config is not None:
        check_own_file(file, file.config, config, name)
    return load_vit(file, config, name) if isinstance(config, ViTConfig) else load_timm(file, config, name)


def load_vit(file: WeightFile, config: ViTConfig, name: str) -> VisionTransformer:
    """One of ours: positions resampled, heads for other classes left out with a warning."""
    stored = as_stored(file, config)
    with torch.device("meta"):
        model = VisionTransformer(stored)
    wrong = differences(file.state, model)
    if wrong:
        raise misfit(file, name, wrong)
    state = in_our_layout(file, stored)
    expected = model.state_dict()
    kept = {key: x for key, x in state.items() if key in expected and x.shape == expected[key].shape}
    model.load_state_dict(kept, strict=False, assign=True)
    fresh = [head for head in stored.prediction_heads if not {f"{head}.weight", f"{head}.bias"} <= kept.keys()]
    renew_heads(model, fresh)
    if config.classes != stored.classes:
        set_classes(model, config.classes)
    warn_of_heads(file, stored, config.classes, fresh)
    # timm's models resample positions with antialiasing, released LV-ViT without.
    set_image_size(model, *config.image_size, antialias=not is_ours(file.state) and "aux_head.weight" not in file.state)
    return model


def in_our_layout(file: WeightFile, stored: ViTConfig) -> dict[str, Tensor]:
    """The file's tensors under our names; only our own files keep another type than float32."""
    state = dict(file.state) if is_ours(file.state) else from_published(stored, file.state)
    if file.config is not None:
        return state
    return {key: tensor.float() if tensor.is_floating_point() else tensor for key, tensor in state.items()}


def load_timm(file: WeightFile, config: TimmConfig, name: str) -> TimmClassifier:
    """timm's model, from one of our files or in timm's own layout."""
    model = TimmClassifier(config)
    expected, heads = model.state_dict(), heads_of(model)
    state = file.state if file.config is not None else {f"model.{key}": x for key, x in file.state.items()}
    body, wanted = without(state, *heads), without(expected, *heads)
    if body.keys() == wanted.keys() and shape_differences(body, wanted):
        body = resampled_by_timm(model, body)
    wrong = shape_differences(body, wanted)
    if wrong:
        raise misfit(file, name, wrong)
    found = {key: state[key] for key in state.keys() & expected.keys() - wanted.keys()}
    kept = {key: x for key, x in found.items() if x.shape == expected[key].shape}
    if kept.keys() != found.keys():
        sentence = f"'{file.path}' is not for {config.classes} classes: its heads are left out, fresh ones are made"
        warnings.warn(sentence, stacklevel=CALLER - 1)
    model.load_state_dict(body | kept, strict=False)
    return model


def heads_of(model: TimmClassifier) -> tuple[str, ...]:
    """The heads' names in the adapter's state dict."""
    return (*(f"model.{name}" for name in classifier_names(model.config)), "token_head")


def resampled_by_timm(model: TimmClassifier, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Positions for the model's image size; timm keeps what it knows of that beside each family of models."""
    adapt = getattr(sys.modules[type(model.model).__module__], "checkpoint_filter_fn", None)
    if adapt is None:
        return state
    adapted = adapt({key.removeprefix("model."): x for key, x in state.items()}, model.model)
    return {f"model.{key}": x for key, x in adapted.items()}


def fitting(file: WeightFile) -> list[str]:
    """Names of the models that the file's tensors fit: those of its own image size, if there are any."""
    state = file.state
    depth = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
    width = state["norm.weight"].numel() if "norm.weight" in state else 0
    alike = {name: config for name, config in MODELS.items() if (config.depth, config.width) == (depth, width)}
    with torch.device("meta"):
        models = {name: VisionTransformer(as_stored(file, config)) for name, config in alike.items()}
    fits = [name for name, model in models.items() if not differences(state, model)]
    return [name for name in fits if as_stored(file, MODELS[name]) == MODELS[name]] or fits


def as_stored(file: WeightFile, config: ViTConfig) -> ViTConfig:
    """The config with the file's own classes and image size."""
    classes = stored_classes(file, config)
    if file.config is not None:
        return replace(config, classes=classes, image_size=file.config.image_size)
    table = file.state.get("positions.table", file.state.get("pos_embed"))
    if config.positions != "learned" or table is None or table.ndim < 2:
        return replace(config, classes=classes)
    tokens = table.shape[-2] - (config.class_tokens if config.class_position else 0)
    side = isqrt(max(tokens, 0))
    # A table of another rectangle cannot be told from its length; the difference in shape is then reported.
    if tokens == prod(config.grid) or side == 0 or side**2 != tokens:
        return replace(config, classes=classes)
    return replace(config, classes=classes, image_size=(side * config.stem.patch,) * 2)


def stored_classes(file: WeightFile, config: ModelConfig) -> int:
    """Classes of the file's image head, or the config's where it has none."""
    if file.config is not None:
        return file.config.classes
    heads = ("head",) if isinstance(config, ViTConfig) else classifier_names(config)
    weights = [file.state[f"{head}.weight"] for head in heads if f"{head}.weight" in file.state]
    named = None if file.usage is None else len(file.usage.classes)
    if not weights or not weights[0].ndim:
        return config.classes if named is None else named
    count = weights[0].shape[0]
    require(named in (None, count), f"'{file.path}' has {count} classes and names {named}; export it again")
    return count


def classifier_names(config: TimmConfig) -> tuple[str, ...]:
    """What timm calls the heads of its model."""
    known = get_pretrained_cfg(config.name)
    names = (known and known.classifier) or ()
    return (names,) if isinstance(names, str) else tuple(names)


def is_ours(state: Mapping[str, Tensor]) -> bool:
    """Whether the names are those of our models."""
    return "blocks.0.attention.input.weight" in state


def differences(state: Mapping[str, Tensor], model: VisionTransformer) -> list[str]:
    """Names, as the file has them, of tensors that are missing, unknown or of another shape, heads apart."""
    expected = model.state_dict()
    if not is_ours(state):
        if unpublished(model.config):
            return sorted(state)
        expected = to_published(model.config, expected, gains_of(state))
    heads = *HEADS, *HEADS.values()
    return shape_differences(without(state, *heads), without(expected, *heads))


def shape_differences(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Names that only one of the two has, then names whose shapes differ."""
    unequal = [key for key in found.keys() & expected.keys() if found[key].shape != expected[key].shape]
    return sorted(found.keys() ^ expected.keys()) + sorted(unequal)


def without(state: Mapping[str, Tensor], *modules: str) -> dict[str, Tensor]:
    """Everything but these modules' tensors."""
    return {key: tensor for key, tensor in state.items() if key.rpartition(".")[0] not in modules}


def misfit(file: WeightFile, name: str, wrong: list[str]) -> UserError:
    """Which tensors differ, and what would fit."""
    first = ", ".join(wrong[:3])
    return does_not_fit(file, name, f"{len(wrong)} tensors differ, the first are {first}", fitting(file))


def does_not_fit(file: WeightFile, name: str, why: str, fits: list[str]) -> UserError:
    """The sentence for weights of another model."""
    would = f"it would fit {', '.join(fits[:3])}" if fits else "it fits no model known by name"
    return UserError(f"'{file.path}' does not fit {name}: {why}; {would}")


def check_own_file(file: WeightFile, inside: ModelConfig, config: ModelConfig, name: str) -> None:
    """A file of ours says what it holds: its tensors must agree, and so must the model that is asked for."""
    with torch.device("meta"):
        wrong = shape_differences(file.state, build(inside).state_dict())
    if wrong:
        first = ", ".join(wrong[:3])
        raise UserError(
            f"'{file.path}' does not hold the model its config describes; the first that differ are {first}"
        )
    # Two models can have equal shapes and still differ, in heads or eps say.
    compared = ARCHITECTURE if isinstance(config, ViTConfig) else ["name"]
    for field in compared:
        theirs, wanted = getattr(inside, field, None), getattr(config, field)
        if theirs != wanted:
            raise does_not_fit(file, name, f"its {field} is {theirs} and not {wanted}", names_of(inside))


def names_of(config: ModelConfig) -> list[str]:
    """Names of models with this architecture."""
    if isinstance(config, TimmConfig):
        return [f"timm/{config.name}"]
    return [name for name, known in MODELS.items() if same_architecture(known, config)]


def same_architecture(one: ViTConfig, other: ViTConfig) -> bool:
    """Whether two configs differ in nothing that weights depend on."""
    return all(getattr(one, field) == getattr(other, field) for field in ARCHITECTURE)


def warn_of_heads(file: WeightFile, stored: ViTConfig, classes: int, fresh: list[str]) -> None:
    """Say which heads of the file are not used, and which of the model are fresh."""
    if classes != stored.classes:
        sentence = f"its heads are left out, those for {classes} are fresh"
        warnings.warn(f"'{file.path}' is for {stored.classes} classes: {sentence}", stacklevel=CALLER)
        return
    for head in fresh:
        warnings.warn(f"'{file.path}' has no {head} for {classes} classes: a fresh one is made", stacklevel=CALLER)
    for head, published in HEADS.items():
        if head not in stored.prediction_heads and {f"{head}.weight", f"{published}.weight"} & file.state.keys():
            warnings.warn(f"the {head} of '{file.path}' is left out: the model has none", stacklevel=CALLER)
