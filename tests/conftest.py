"""The path, so that test modules import their stand-ins by name, and what hypothesis is told."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

# The links of a simulated sysfs lead in circles, and no test lives there.
collect_ignore = ["machines"]

sys.path.insert(0, str(Path(__file__).parent))

# A busy machine is slow; how long an example takes says nothing about the code.
settings.register_profile("memwatch", deadline=None)
settings.load_profile("memwatch")
