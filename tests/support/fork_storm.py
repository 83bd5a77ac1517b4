"""Many short-lived processes, evenly spread over time.

python tests/support/fork_storm.py COUNT SECONDS
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

BATCH = 25
LIVES_SECONDS = 0.2


def main(count: int, seconds: float) -> None:
    """Start batches of sleeping children; the number alive is bounded by two of their lifetimes."""
    started = time.monotonic()
    for born in range(0, count, BATCH):
        for _ in range(BATCH):
            if os.fork() == 0:
                time.sleep(LIVES_SECONDS)
                os._exit(0)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(max(0.0, started + (born + BATCH) / count * seconds - time.monotonic()))
    reap_all()


def reap_all() -> None:
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
