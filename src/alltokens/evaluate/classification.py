"""How often a model is right: its first answers for every image, and the figures that are made of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from alltokens.errors import require
from alltokens.models.prediction import Prediction
from alltokens.shapes import Bool, Float, Int

KEPT = 5
"""First answers that are kept of an image."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model answered for each of some images."""

    keys: tuple[str, ...]
    truth: Int[Tensor, " n"]
    """The class that is right, -1 where an image has none."""
    first: Int[Tensor, "n k"]
    """The classes with the highest scores, the highest first."""
    certainty: Float[Tensor, "n k"]
    """Their probabilities by the softmax of the scores."""
    loss: Float[Tensor, " n"]
    """Cross-entropy with the class that is right, NaN where there is none."""

    @classmethod
    def of(cls, keys: Sequence[str], truth: Int[Tensor, " n"], scores: Float[Tensor, "n classes"]) -> "Answers":
        """From the scores of a batch, on the CPU."""
        logarithms = scores.float().log_softmax(1)
        certainty, first = logarithms.topk(min(KEPT, scores.shape[1]), 1)
        loss = -logarithms.gather(1, truth.clamp(min=0)[:, None].to(scores.device))[:, 0].cpu()
        loss = loss.masked_fill(truth.cpu() < 0, torch.nan)
        return cls(tuple(keys), truth.cpu(), first.cpu(), certainty.exp().cpu(), loss)

    @classmethod
    def join(cls, parts: Sequence["Answers"]) -> "Answers":
        """Of several batches, in their order."""
        require(len(parts) > 0, "there is no image to evaluate on; got 0 batches")
        return cls(
            keys=tuple(key for part in parts for key in part.keys),
            truth=torch.cat([part.truth for part in parts]),
            first=torch.cat([part.first for part in parts]),
            certainty=torch.cat([part.certainty for part in parts]),
            loss=torch.cat([part.loss for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.keys)

    def with_class(self) -> "Answers":
        """For the images alone that have a class."""
        known = self.truth >= 0
        keys = tuple(compress(self.keys, known.tolist()))
        return Answers(keys, self.truth[known], self.first[known], self.certainty[known], self.loss[known])

    def is_right(self, among: int = 1) -> Bool[Tensor, " n"]:
        """Whether the right class is among the first answers."""
        require(1 <= among <= KEPT, f"the first {KEPT} answers are kept; got among={among}")
        return (self.first[:, :among] == self.truth[:, None]).any(1)

    def accuracy(self, among: int = 1) -> float:
        """Share of the images that are right: top-1, top-5."""
        return float(self.is_right(among).double().mean())

    def mean_loss(self) -> float:
        """Cross-entropy."""
        return float(self.loss.double().mean())


@dataclass(frozen=True)
class ClassFigures:
    """How a model does on the images of one class."""

    number: int
    images: int
    top1: float
    top5: float
    mistaken_for: int | None
    """The class that it most often takes them for when it is wrong; None where it never is."""


def by_class(answers: Answers) -> list[ClassFigures]:
    """Figures for each class that has images, by number."""
    images = answers.truth.bincount()
    right, among_first = (answers.truth[answers.is_right(among)].bincount(minlength=len(images)) for among in (1, KEPT))
    taken: dict[int, int] = {}
    for truth, answered, _ in confusions(answers):
        taken.setdefault(truth, answered)
    return [
        ClassFigures(
            number=number,
            images=int(images[number]),
            top1=int(right[number]) / int(images[number]),
            top5=int(among_first[number]) / int(images[number]),
            mistaken_for=taken.get(number),
        )
        for number in images.nonzero()[:, 0].tolist()
    ]


def confusions(answers: Answers) -> list[tuple[int, int, int]]:
    """(right class, class answered, how often) for every pair that is confused, the most frequent first.

    Equally frequent ones come by their numbers.
    """
    wrong = ~answers.is_right()
    pairs = Counter(zip(answers.truth[wrong].tolist(), answers.first[wrong, 0].tolist(), strict=True))
    return sorted(
        ((truth, taken, count) for (truth, taken), count in pairs.items()), key=lambda one: (-one[2], one[:2])
    )


def confusion_counts(answers: Answers, numbers: Sequence[int]) -> Int[Tensor, "n n"]:
    """How often images of each of these classes, a row, are taken for each of them, a column."""
    place = {number: row for row, number in enumerate(numbers)}
    counts = torch.zeros(len(numbers), len(numbers), dtype=torch.int64)
    pairs = Counter(zip(answers.truth.tolist(), answers.first[:, 0].tolist(), strict=True))
    for (truth, answered), count in pairs.items():
        if truth in place and answered in place:
            counts[place[truth], place[answered]] = count
    return counts


def worst_mistakes(answers: Answers, count: int) -> list[int]:
    """Places of the wrong answers with the highest loss: sure of something else."""
    order = answers.loss.masked_fill(answers.is_right(), -torch.inf).argsort(descending=True, stable=True)
    return order[: min(count, int((~answers.is_right()).sum()))].tolist()


def scores_by_rule(prediction: Prediction, token_weight: float) -> dict[str, Float[Tensor, "b classes"]]:
    """The image's logits, and those plus so many times the maximum over tokens where the model has token logits."""
    scores = {"image": prediction.scores(0.0)}
    if prediction.token_logits is not None and token_weight > 0:
        scores[f"image + {token_weight:g} max token"] = prediction.scores(token_weight)
    return scores
