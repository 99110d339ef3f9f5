"""The examples run as a user runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_training_with_token_labels_lowers_the_loss() -> None:
    # Without the variable the process would have as many threads as the machine has cores.
    answer = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "train_with_token_labels.py"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    losses = [float(loss) for loss in re.findall(r"^step +\d+: loss ([\d.]+)$", answer.stdout, re.MULTILINE)]
    assert len(losses) == 6
    assert losses[-1] < 0.75 * losses[0]
