"""What a user can cause, and the suggestion that goes with a mistyped name."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Something the user can put right; the message is one sentence with the value got and what would be right."""


class RunFailed(UserError):
    """What was asked for is in order, but came to nothing: a run that diverges."""


def require(condition: bool, sentence: str) -> None:
    """Raise the sentence unless the condition holds."""
    if not condition:
        raise UserError(sentence)


def by(sizes: Iterable[int]) -> str:
    """`3 x 224 x 224`."""
    return " x ".join(map(str, sizes))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean a, b?` for the closest known words, or nothing where none is close."""
    closest = get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f"; did you mean {', '.join(closest)}?" if closest else ""
