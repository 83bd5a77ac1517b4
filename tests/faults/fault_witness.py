"""pytest plugin for `make faults`: check every daemon with the common oracle when a test ends."""

from __future__ import annotations

from fault_oracle import assert_quiet, assert_well

from support import daemon_process

SECONDS = 60.0


def is_stalled(daemon: daemon_process.RunningDaemon) -> bool:
    """Return True if a test made the loop hang; such a test checks the outcome itself."""
    return daemon.get("/healthz").status != 200


def witness(daemon: daemon_process.RunningDaemon) -> None:
    if not is_stalled(daemon):
        assert_well(daemon)
        assert_quiet(daemon, 0, SECONDS)


daemon_process.WITNESSES.append(witness)
