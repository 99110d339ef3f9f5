"""What a prediction's scores are made of."""

import pytest
import torch

from alltokens.errors import UserError
from alltokens.models.prediction import Prediction

IMAGE = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
TOKENS = torch.tensor([[[0.0, 10.0], [4.0, -10.0]], [[-2.0, -6.0], [-4.0, -8.0]]])
DISTILLATION = torch.tensor([[3.0, 0.0], [5.0, 0.0]])


def test_scores_are_the_image_logits_without_token_weight():
    torch.testing.assert_close(Prediction(IMAGE, TOKENS).scores(), IMAGE)


def test_scores_add_the_weighted_maximum_over_tokens_of_each_class():
    expected = torch.tensor([[1.0 + 0.5 * 4.0, 2.0 + 0.5 * 10.0], [3.0 - 0.5 * 2.0, 4.0 - 0.5 * 6.0]])
    torch.testing.assert_close(Prediction(IMAGE, TOKENS).scores(token_weight=0.5), expected)


def test_scores_average_the_two_heads_of_a_distilled_model():
    expected = torch.tensor([[2.0, 1.0], [4.0, 2.0]])
    torch.testing.assert_close(Prediction(IMAGE, None, DISTILLATION).scores(), expected)


def test_scores_average_the_heads_before_they_add_the_tokens():
    expected = torch.tensor([[2.0 + 4.0, 1.0 + 10.0], [4.0 - 2.0, 2.0 - 6.0]])
    torch.testing.assert_close(Prediction(IMAGE, TOKENS, DISTILLATION).scores(token_weight=1.0), expected)


def test_a_token_weight_without_token_logits_is_refused():
    with pytest.raises(UserError, match=r"^token_weight needs token logits; got token_weight=0\.5 and a model without"):
        Prediction(IMAGE).scores(token_weight=0.5)
