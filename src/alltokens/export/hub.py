"""A model for timm: a weight file in its layout, or a folder in the Hugging Face layout that it loads."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import timm
from safetensors.torch import load_file, save
from torch import Tensor, nn

from alltokens.export.scores import Record, Scores, Written, check, write_checked
from alltokens.files import write_atomically, write_folder
from alltokens.models.config import LinearStem, ViTConfig
from alltokens.models.convert import from_published, to_published
from alltokens.models.loading import same_architecture
from alltokens.models.timm_contract import ANY_VIT, first_convolution
from alltokens.models.timm_model import TimmClassifier, timm_arguments
from alltokens.models.vit import VisionTransformer
from alltokens.models.weights import Model
from alltokens.models.zoo import find
from alltokens.plain import to_plain

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"

# timm's models that are also ours.
TIMM_NAMES = {
    "vit_tiny_patch16_224": "vit_ti",
    "vit_small_patch16_224": "vit_s",
    "vit_base_patch16_224": "vit_b",
    "vit_large_patch16_224": "vit_l",
    "vit_small_patch16_36x1_224": "vit_s_36x1_ls",
    "vit_small_patch16_18x2_224": "vit_s_18x2_ls",
    "vit_base_patch16_18x2_224": "vit_b_18x2_ls",
    "deit_tiny_distilled_patch16_224": "deit_ti_distilled",
    "deit_small_distilled_patch16_224": "deit_s_distilled",
    "deit_base_distilled_patch16_224": "deit_b_distilled",
    "deit_base_distilled_patch16_384": "deit_b_distilled_384",
    "deit3_small_patch16_224": "deit3_s",
    "deit3_small_patch16_384": "deit3_s_384",
    "deit3_base_patch16_224": "deit3_b",
    "deit3_base_patch16_384": "deit3_b_384",
    "deit3_large_patch16_224": "deit3_l",
    "deit3_large_patch16_384": "deit3_l_384",
    "cait_xxs24_224": "cait_xxs24",
    "cait_xxs24_384": "cait_xxs24_384",
    "cait_xxs36_224": "cait_xxs36",
    "cait_xxs36_384": "cait_xxs36_384",
    "cait_xs24_384": "cait_xs24_384",
    "cait_s24_224": "cait_s24",
    "cait_s24_384": "cait_s24_384",
    "cait_s36_384": "cait_s36_384",
    "cait_m36_384": "cait_m36_384",
    "cait_m48_448": "cait_m48_448",
}
ARGUMENTS = {
    "width": "embed_dim",
    "depth": "depth",
    "heads": "num_heads",
    "image_size": "img_size",
    "channels": "in_chans",
    "classes": "num_classes",
}
"""Fields of ours that are arguments of these models."""


@dataclass(frozen=True, kw_only=True)
class TimmForm:
    """A model as timm builds it."""

    architecture: str
    """What timm.create_model calls it."""
    arguments: dict[str, Any]
    """What else timm.create_model is given."""
    state: dict[str, Tensor]
    settings: dict[str, Any]
    """What timm wants to know of the first layer and the classifier, to adapt them to other channels and classes."""
    token_weight: float
    """What evaluation adds of the tokens' logits; timm's own models have none to add."""


def write_timm(model: Model, about: Record, path: Path) -> Written:
    """Write the weights under timm's names, or the released ones, and check them in timm where it has the model."""
    form = form_in_timm(model)
    if form is None:
        return write_released(model, about, path)

    def load(name: str) -> nn.Module:
        built = timm.create_model(form.architecture, **form.arguments)
        built.load_state_dict(load_file(name))
        return built.eval()

    content = serialized(form.state, about)
    difference = write_checked(path, lambda file: file.write(content), load, model, form.token_weight)
    arguments = "".join(f", {name}={value!r}" for name, value in form.arguments.items())
    line = f'load it with timm.create_model("{form.architecture}"{arguments}, checkpoint_path="{path}")'
    return Written(difference, (line, *left_out(model, form)))


def write_released(model: Model, about: Record, path: Path) -> Written:
    """Write weights for which timm has no model under the names they were, or would be, released with."""
    assert isinstance(model, VisionTransformer), "timm has its own models"
    content = serialized(to_published(model.config, model.state_dict()), about)

    def load(name: str) -> Scores:
        loaded = VisionTransformer(model.config)
        loaded.load_state_dict(from_published(model.config, load_file(name)))
        return Scores(loaded)

    difference = write_checked(path, lambda file: file.write(content), load, model)
    return Written(difference, ("timm has no such model: its tensors are named as in published checkpoints",))


def write_hub(model: Model, about: Record, path: Path) -> Written:
    """Write a folder of config.json and model.safetensors, and check what timm loads from it."""
    form = form_in_timm(model) or form_of_ours(model)

    def fill(folder: Path) -> float:
        write_atomically(folder / WEIGHTS_FILE, lambda file: file.write(serialized(form.state, about)))
        text = json.dumps(hub_config(form, model, about), indent=2) + "\n"
        write_atomically(folder / CONFIG_FILE, lambda file: file.write(text.encode()))
        return check(model, timm.create_model(f"local-dir:{folder}", pretrained=True).eval(), form.token_weight)

    difference = write_folder(path, fill)
    ours = timm.models.model_entrypoint(form.architecture).__module__.startswith("alltokens.")
    after = " after import alltokens" if ours else ""
    line = f'load it with timm.create_model("local-dir:{path}", pretrained=True){after}'
    return Written(difference, (line, *left_out(model, form)))


def form_in_timm(model: Model) -> TimmForm | None:
    """The model as one of timm's own, where it is one."""
    if isinstance(model, TimmClassifier):
        return form_of_classifier(model)
    found = timm_architecture(model.config)
    if found is None:
        return None
    architecture, arguments = found
    kept = {key: tensor for key, tensor in model.state_dict().items() if not key.startswith("token_head.")}
    heads = ["head", "head_dist"] if model.config.distillation_token else "head"
    return TimmForm(
        architecture=architecture,
        arguments=arguments,
        state=to_published(model.config, kept),
        settings={"fixed_input_size": True, "first_conv": "patch_embed.proj", "classifier": heads},
        token_weight=0.0,
    )


def timm_architecture(config: ViTConfig) -> tuple[str, dict[str, Any]] | None:
    """timm's name of the architecture and the fewest arguments that make it so."""
    if config.stem != LinearStem() or config.head_width is not None or config.token_weight > 0:
        return None
    sizes = {field: getattr(config, field) for field in ARGUMENTS}
    found = []
    for name, ours in TIMM_NAMES.items():
        reference = find(ours)
        if type(config.residual) is not type(reference.residual):
            continue
        joins = config.depth if reference.class_attention else reference.class_token_at
        # First gains may differ: weights replace them.
        resized = replace(reference, **sizes, class_token_at=joins, residual=config.residual)
        if same_architecture(resized, config):
            differing = {ARGUMENTS[field]: size for field, size in sizes.items() if size != getattr(reference, field)}
            found.append((name, differing))
    return min(found, key=lambda pair: len(pair[1]), default=None)


def form_of_classifier(model: TimmClassifier) -> TimmForm:
    """timm's own model, without the token head that stands beside it."""
    known = cast(dict[str, Any], model.model.pretrained_cfg)
    return TimmForm(
        architecture=known["architecture"],
        arguments=timm_arguments(model.config),
        state=model.model.state_dict(),
        settings={key: known.get(key) for key in ("fixed_input_size", "first_conv", "classifier", "pool_size")},
        token_weight=0.0,
    )


def form_of_ours(model: Model) -> TimmForm:
    """Any of our models: timm builds it from its config once alltokens is imported."""
    assert isinstance(model, VisionTransformer), "timm has its own models"
    config = model.config
    return TimmForm(
        architecture=ANY_VIT,
        arguments={"config": to_plain(config)},
        state={f"model.{key}": tensor for key, tensor in model.state_dict().items()},
        settings={
            "fixed_input_size": True,
            "first_conv": first_convolution(config),
            "classifier": [f"model.{head}" for head in config.prediction_heads],
        },
        token_weight=config.token_weight,
    )


def hub_config(form: TimmForm, model: Model, about: Record) -> dict[str, Any]:
    """What timm reads before it builds the model."""
    classes = model.config.classes
    return {
        "architecture": form.architecture,
        "num_classes": classes,
        **({"label_names": about.classes} if about.classes else {}),
        "model_args": form.arguments,
        "pretrained_cfg": {
            "num_classes": classes,
            "input_size": (model.config.channels, *about.image_size),
            "crop_pct": about.crop_ratio,
            "interpolation": about.interpolation,
            "mean": about.mean,
            "std": about.standard_deviation,
            **form.settings,
        },
    }


def serialized(state: dict[str, Tensor], about: Record) -> bytes:
    """Safetensors, with what goes with the weights in the header."""
    return save({key: tensor.contiguous() for key, tensor in state.items()}, {"format": "pt"} | about.as_text())


def left_out(model: Model, form: TimmForm) -> tuple[str, ...]:
    """What the user should know is missing."""
    if not model.config.token_head or form.architecture == ANY_VIT:
        return ()
    return ("its token head is left out: timm answers with the image logits alone",)
