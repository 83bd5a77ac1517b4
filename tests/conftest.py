"""Nothing here but the path: test modules import their stand-ins and machine folders by name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
