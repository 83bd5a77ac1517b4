"""Entry point of `python -m memwatchd.client`."""

import sys

from memwatchd.client.cli import main

sys.exit(main())
