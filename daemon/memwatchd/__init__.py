"""The daemon process: settings, wiring, command line."""

from __future__ import annotations

import sys


def load_msgspec() -> None:
    """Load msgspec without typing_extensions, which it tries: 0.3 MiB that only the pages and the API use."""
    if sys.modules.keys().isdisjoint(("msgspec", "typing_extensions")):
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # `import` raises ImportError
        try:
            import msgspec  # noqa: F401
        finally:
            del sys.modules["typing_extensions"]


load_msgspec()
