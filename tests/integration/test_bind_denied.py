"""Listening where the unit forbids the port: SocketBindDeny= makes bind(2) fail with EPERM."""

from __future__ import annotations

import subprocess
import sys

from support.daemon_process import MEMWATCHD, clean_environment
from support.dead_address import dead_port
from support.waiting import MAX_WAIT_SECONDS

# A seccomp filter (seccomp(2)) that fails bind(2) like SocketBindDeny= does, then the program in its arguments.
WITHOUT_BIND = """
import ctypes, os, platform, struct, sys
number = {"x86_64": 49, "aarch64": 200}[platform.machine()]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code), 8 * len(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
filter = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program))
assert libc.prctl(22, 2, ctypes.c_char_p(filter)) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_denied_port_names_the_line_of_the_unit_that_allows_it() -> None:
    """The exit code stops systemd's restarts, and the error names SocketBindAllow= with the port."""
    port = dead_port()
    command = [sys.executable, "-c", WITHOUT_BIND, MEMWATCHD, "--listen", f"127.0.0.1:{port}"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=clean_environment(), timeout=MAX_WAIT_SECONDS, check=False
    )

    assert done.returncode == 78, done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"memwatchd: cannot listen on 127.0.0.1:{port}: operation not permitted; "
        f"add SocketBindAllow=tcp:{port} to the unit (systemctl edit memwatchd)"
    )
