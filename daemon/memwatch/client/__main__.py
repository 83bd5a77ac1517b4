"""Entry point of `python -m memwatch.client`."""

import sys

from memwatch.client.cli import main

sys.exit(main())
