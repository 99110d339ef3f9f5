"""The model that a run begins with: drawn, or with weights that were trained before."""

from dataclasses import replace

from alltokens.annotate.pip_weights import PIP_MODELS, read_pip_weights
from alltokens.models.loading import build, classifier_names, load, stored_classes, without
from alltokens.models.timm_model import TimmConfig
from alltokens.models.weights import Model, ModelConfig, read_weights


def first_model(config: ModelConfig, initial: str | None) -> Model:
    """With fresh weights, or those of a file or package whose heads for other classes are left out; in float32."""
    if initial is None:
        return build(config)
    if initial in PIP_MODELS and isinstance(config, TimmConfig):
        file = read_pip_weights(initial)
        if stored_classes(file, config) != config.classes:
            # Without a warning: nobody expects ImageNet's head to stay.
            file = replace(file, state=without(file.state, *classifier_names(config)))
    else:
        file = read_weights(initial)
    return load(file, config, "the model").float()
