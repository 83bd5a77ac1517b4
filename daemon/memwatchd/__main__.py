"""Entry point of `python -m memwatchd`."""

import sys

from memwatchd.cli import main

sys.exit(main())
