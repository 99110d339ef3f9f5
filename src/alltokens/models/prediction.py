"""What every model answers, in training and in evaluation."""

from typing import NamedTuple

from torch import Tensor

from alltokens.errors import UserError
from alltokens.shapes import Float


class Prediction(NamedTuple):
    """Logits of the image, and of each token and the distillation token where the model has those heads."""

    image_logits: Float[Tensor, "b k"]
    token_logits: Float[Tensor, "b n k"] | None = None
    distillation_logits: Float[Tensor, "b k"] | None = None

    def scores(self, token_weight: float = 0.0) -> Float[Tensor, "b k"]:
        """Image logits, averaged with the distillation head's, plus token_weight times the maximum over tokens."""
        scores = self.image_logits
        if self.distillation_logits is not None:
            scores = (scores + self.distillation_logits) / 2
        if token_weight == 0.0:
            return scores
        if self.token_logits is None:
            raise UserError(
                f"token_weight needs token logits; got token_weight={token_weight} and a model without them"
            )
        return scores + token_weight * self.token_logits.amax(1)
