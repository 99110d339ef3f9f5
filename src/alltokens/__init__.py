"""Vision transformers in which every token is supervised, on PyTorch and timm.

The names below are promised; the rest is importable but may move. Importing the package also registers every model with
timm, so that `timm.create_model("lvvit_s")` works.
"""

from alltokens.geometry.view import View
from alltokens.labels.align import SparseTargets, token_targets
from alltokens.labels.score_map import ScoreMap
from alltokens.labels.sparse_loss import token_cross_entropy
from alltokens.labels.store import LabelStore
from alltokens.mix.token_mix import TokenMix
from alltokens.models import timm_contract as timm_contract  # imported for what it registers
from alltokens.models.config import ViTConfig
from alltokens.models.factory import create_model
from alltokens.models.prediction import Prediction
from alltokens.models.vit import VisionTransformer
from alltokens.models.zoo import list_models

__version__ = "0.1.0"

__all__ = [
    "LabelStore",
    "Prediction",
    "ScoreMap",
    "SparseTargets",
    "TokenMix",
    "ViTConfig",
    "View",
    "VisionTransformer",
    "create_model",
    "list_models",
    "token_cross_entropy",
    "token_targets",
]
