"""A uvicorn with which the limits for clients were not tested must not run the daemon."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import uvicorn

from support.daemon_process import MEMWATCHD, clean_environment
from support.free_ports import free_port

MAX_START_SECONDS = 20


def test_untested_uvicorn_is_refused_at_start(tmp_path: Path) -> None:
    """Exit code 78, which systemd does not restart, and one line with the reason and a remedy."""
    copy = tmp_path / "packages" / "uvicorn"
    shutil.copytree(Path(uvicorn.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / "__init__.py"
    text = file.read_text()
    assert f'"{uvicorn.__version__}"' in text
    file.write_text(text.replace(f'"{uvicorn.__version__}"', '"0.55.0"'))

    ended = start_with(copy.parent)

    assert ended.returncode == 78, ended.stderr
    assert "the limits for clients are tested with uvicorn 0.54 only, and this is 0.55.0; " in ended.stderr
    assert "reinstall memwatchd" in ended.stderr
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
