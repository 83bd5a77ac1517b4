"""Test the files of `memwatch advise --systemd` with the parser of systemd."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from memwatch.planning.unit_files import RULE_FILE
from support.client_process import memwatch
from support.daemon_process import running_daemon

NEEDED_PROGRAMS = ("systemd-analyze",)
# Keys that older versions ignore with a warning.
SINCE = {"OOMRules": 261}


def complaints_of(folder: Path, unit: str) -> list[str]:
    """Return the complaints of systemd-analyze about a unit in a folder, without those about newer keys."""
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(folder / unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True)
    newer = [key for key, since in SINCE.items() if int(found.stdout.split()[1]) < since]
    about = [line for line in done.stderr.splitlines() if unit in line and "is transient" not in line]
    return [line for line in about if not any(f"'{key}'" in line for key in newer)]


def serves_a_model(processes: Any) -> bool:
    """Return True while the demo's model server holds most of its memory."""
    sizes = [one["device_bytes"].values() for one in processes if one["unit"] == "llama.service"]
    return bool(sum(size for held in sizes for size in held if size) > 8 << 30)


def test_advised_drop_ins_are_valid_and_nothing_is_written(tmp_path: Path) -> None:
    """The machine runs a model server as a service: its drop-in has no unknown key and no invalid value."""
    drop_in = "/etc/systemd/system/llama.service.d/50-memwatch.conf"
    with running_daemon(tmp_path, "--demo=strix-halo", "--speed=20") as daemon:
        daemon.wait_for("/api/v1/processes", serves_a_model)
        answer = json.loads(memwatch("--url", daemon.url, "advise", "--systemd", "--json").stdout)
        daemon.wait_for("/api/v1/processes", serves_a_model)
        text = memwatch("--url", daemon.url, "advise", "--systemd").stdout
    files = {one["path"]: one["text"] for one in answer["files"]}
    (tmp_path / "llama.service.d").mkdir()
    (tmp_path / "llama.service").write_text("[Service]\nExecStart=/bin/true\n")
    (tmp_path / "llama.service.d/50-memwatch.conf").write_text(files[drop_in])

    assert complaints_of(tmp_path, "llama.service") == []
    assert f"# --- {drop_in}\n# llama.service holds " in text
    assert "OOMScoreAdjust=" in files[drop_in]
    assert files[RULE_FILE].endswith("[Rule]\nMemoryPressureAbove=60%\nLastingSec=20s\nAction=kill-all\n")
    assert not Path(drop_in).exists()


@pytest.mark.parametrize(
    "line", ["OOMScoreAdjust=2000", "OOMPolicy=all", "MemoryMax=much", "ManagedOOMPreference=x"]
)
def test_parser_of_systemd_rejects_wrong_values(tmp_path: Path, line: str) -> None:
    """The check above would see a mistake."""
    (tmp_path / "llama.service").write_text(f"[Service]\nExecStart=/bin/true\n{line}\n")

    assert complaints_of(tmp_path, "llama.service") != []


def test_machine_without_services_on_the_gpu_says_so(tmp_path: Path) -> None:
    """The holder is a container here, which is named."""
    with running_daemon(tmp_path, "--demo=dgx-spark", "--speed=0.1") as daemon:
        done = memwatch("--url", daemon.url, "advise", "--systemd")

    assert done.stdout.startswith(
        "# No system service holds 2 GiB of GPU memory or more: there is nothing to set.\n"
    )
