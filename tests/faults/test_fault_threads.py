"""A thread of the daemon that ends."""

from __future__ import annotations

import errno
from pathlib import Path

from support.daemon_process import running_daemon
from support.libc_faults import LibcFaults
from support.waiting import MAX_WAIT_SECONDS


def test_daemon_without_its_sampling_thread_exits_with_an_error(tmp_path: Path) -> None:
    """A supervisor starts another one. The log has the cause in one line, and no traceback."""
    faults = LibcFaults.of(tmp_path)
    with running_daemon(tmp_path, environ=faults.environ) as daemon:
        faults.fail_poll(errno.ENOMEM)
        code = daemon.process.wait(MAX_WAIT_SECONDS)
        log = daemon.read_log()

    assert code == 1
    assert log.count("thread tick has ended: OSError: [Errno 12] Cannot allocate memory") == 1
    assert log.count("the sampling thread has ended: memwatchd exits") == 1
    assert "Traceback" not in log
