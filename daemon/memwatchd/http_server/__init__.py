"""HTTP server: listening sockets, limits for clients, uvicorn."""

from __future__ import annotations

import sys
from types import ModuleType


def leave_out_command() -> None:
    """Load uvicorn without its command line and its supervisors. With multiprocessing, these take 0.6 MiB."""
    if "uvicorn" in sys.modules:
        return
    stand_in = sys.modules["uvicorn.main"] = ModuleType("uvicorn.main")
    stand_in.__dict__.update(Server=None, main=None, run=None)
    import uvicorn
    from uvicorn.server import Server

    del sys.modules["uvicorn.main"]
    vars(uvicorn)["Server"] = Server  # as the package exports it


leave_out_command()
