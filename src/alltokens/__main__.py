"""`python -m alltokens`, and `torchrun -m alltokens`."""

import sys

from alltokens.cli.main import main

sys.exit(main())
