"""What cannot be asked of the end of augmentation."""

from math import inf, nan

import pytest

from alltokens.augment.finish import FinishConfig
from alltokens.errors import UserError


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"mean": (nan, 0.5, 0.5)}, r"^mean must be three numbers from -1000 to 1000; got mean=\(nan, 0.5, 0.5\)$"),
        ({"mean": (0.5, 0.5, -inf)}, r"^mean must be three numbers from -1000 to 1000; got mean=\(0.5, 0.5, -inf\)$"),
        ({"std": (0.2, 0.0, 0.2)}, r"^std must be three numbers from 0.001 to 1000; got std=\(0.2, 0.0, 0.2\)$"),
        ({"std": (0.2, inf, 0.2)}, r"^std must be three numbers from 0.001 to 1000; got std=\(0.2, inf, 0.2\)$"),
        ({"std": (0.2, nan, 0.2)}, r"^std must be three numbers from 0.001 to 1000; got std=\(0.2, nan, 0.2\)$"),
        ({"erase": 1.5}, r"^erase must be between 0 and 1; got erase=1.5$"),
    ],
)
def test_bad_fields_are_refused(fields, sentence):
    with pytest.raises(UserError, match=sentence):
        FinishConfig(**fields)
