"""A uvicorn that calls other methods than the tested one must not leave the daemon without limits."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import uvicorn

from support.daemon_process import MEMWATCHD, clean_environment
from support.free_ports import free_port

MAX_START_SECONDS = 20
PROTOCOL = "protocols/http/httptools_impl.py"
# Changes that a release may make, and the resulting error.
CHANGES = {
    "a method is renamed": (
        "self.send_400_response(msg)",
        "self.send_error(400, msg)",
        "AttributeError: 'BoundedProtocol' object has no attribute 'send_error'",
    ),
    "the header is kept elsewhere": (
        "self.headers.append((name, value))",
        'self.scope["headers"] = [*self.scope["headers"], (name, value)]',
        "a header of 20 kB is not answered with 431.",
    ),
    "the end of a response is handled elsewhere": (
        "self.response_complete = True",
        "self.is_complete = True",
        "an answered connection does not count as idle",
    ),
    "a parameter is renamed": ("_loop: asyncio", "event_loop: asyncio", "unexpected keyword argument '_loop'"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_uvicorn_without_the_limits_is_refused_at_start(tmp_path: Path, change: str) -> None:
    """Exit code 78, which systemd does not restart, and one line with the reason and a remedy."""
    old, new, reason = CHANGES[change]
    copy = tmp_path / "packages" / "uvicorn"
    shutil.copytree(Path(uvicorn.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / PROTOCOL).read_text()
    assert old in text
    (copy / PROTOCOL).write_text(text.replace(old, new))

    ended = start_with(copy.parent)

    assert ended.returncode == 78, ended.stderr
    assert f"the limits for clients are not in force: with uvicorn {uvicorn.__version__}, " in ended.stderr
    assert reason in ended.stderr
    assert "reinstall memwatchd." in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "listening on" not in ended.stderr


def start_with(packages: Path) -> subprocess.CompletedProcess[str]:
    """Run memwatchd with these packages first. It must end by itself."""
    environment = clean_environment()
    environment["PYTHONPATH"] = f"{packages}:{environment.get('PYTHONPATH', '')}"
    return subprocess.run(
        [MEMWATCHD, "--listen", f"127.0.0.1:{free_port()}"],
        cwd=packages,
        env=environment,
        capture_output=True,
        text=True,
        timeout=MAX_START_SECONDS,
        check=False,
    )
