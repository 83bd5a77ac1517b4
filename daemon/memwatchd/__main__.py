"""`python -m memwatchd` is `memwatchd`."""

import sys

from memwatchd.cli import main

sys.exit(main())
