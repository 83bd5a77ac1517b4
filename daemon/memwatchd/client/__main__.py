"""`python -m memwatchd.client` is `memwatch`."""

import sys

from memwatchd.client.cli import main

sys.exit(main())
