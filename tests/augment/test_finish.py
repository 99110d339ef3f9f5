"""What cannot be asked of the end of augmentation."""

import pytest

from alltokens.augment.finish import FinishConfig
from alltokens.errors import UserError


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"std": (0.2, 0.0, 0.2)}, r"^std must be above 0; got std=\(0.2, 0.0, 0.2\)$"),
        ({"erase": 1.5}, r"^erase must be between 0 and 1; got erase=1.5$"),
    ],
)
def test_bad_fields_are_refused(fields, sentence):
    with pytest.raises(UserError, match=sentence):
        FinishConfig(**fields)
