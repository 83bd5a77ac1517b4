"""A plugin of pytest for `make faults`: every daemon that a test is done with must satisfy the common oracle."""

from __future__ import annotations

from fault_oracle import assert_quiet, assert_well

from support import daemon_process

SECONDS = 60.0


def is_meant_to_be_ill(daemon: daemon_process.RunningDaemon) -> bool:
    """Where the loop was made to hang the test itself says what is expected."""
    return daemon.get("/healthz").status != 200


def witness(daemon: daemon_process.RunningDaemon) -> None:
    if not is_meant_to_be_ill(daemon):
        assert_well(daemon)
        assert_quiet(daemon, 0, SECONDS)


daemon_process.WITNESSES.append(witness)
