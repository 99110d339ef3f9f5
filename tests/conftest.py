"""Shape annotations of the package are enforced in every test, and a worker keeps to one thread.

torch.compile cannot trace the checked functions, so the tests in `tests/compile` are collected only under
`JAXTYPING_DISABLE=1`, where the package is imported as it ships; `make test` runs both halves.
"""

import os

from jaxtyping import install_import_hook

if os.environ.get("JAXTYPING_DISABLE") == "1":
    collect_ignore: list[str] = []
else:
    collect_ignore = ["compile"]
    install_import_hook("alltokens", "beartype.beartype")

import torch  # after the hook, which must come before anything that may import alltokens

torch.set_num_threads(1)
