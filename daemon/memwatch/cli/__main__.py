"""Entry point of `python -m memwatch.cli`."""

import sys

from memwatch.cli.cli import main

sys.exit(main())
