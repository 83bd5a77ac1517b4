"""pytest plugin for `make faults`: check every daemon with the common oracle when a test ends."""

from __future__ import annotations

from fault_oracle import assert_quiet, assert_well

from support import daemon_process

SECONDS = 60.0


def is_meant_to_be_ill(daemon: daemon_process.RunningDaemon) -> bool:
    """Skip the checks if the test itself makes the loop hang."""
    return daemon.get("/healthz").status != 200


def witness(daemon: daemon_process.RunningDaemon) -> None:
    if not is_meant_to_be_ill(daemon):
        assert_well(daemon)
        assert_quiet(daemon, 0, SECONDS)


daemon_process.WITNESSES.append(witness)
