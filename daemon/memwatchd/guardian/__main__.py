"""Entry point of `python -m memwatchd.guardian FD`, with settings in a descriptor."""

import sys

from memwatchd.guardian.loop import main

sys.exit(main())
