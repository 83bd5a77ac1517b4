"""Test what Kubernetes reads: feature files of node-feature-discovery, and the plugin of node-problem-detector."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from support.client_process import SCRIPT, memwatch
from support.daemon_process import clean_environment, running_daemon
from support.paths import DEPLOY
from support.shared_daemons import SharedDaemons
from support.waiting import MAX_WAIT_SECONDS, wait_until

PREFIX = "feature.node.kubernetes.io/memwatch."
# Names and values of labels, as Kubernetes checks them.
LABEL = re.compile(
    r"([a-z0-9.]+)/([A-Za-z0-9][A-Za-z0-9._-]{0,62})=([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)"
)
NO_DAEMON = "http://127.0.0.1:1"


def labels_in(text: str) -> dict[str, str]:
    found = [LABEL.fullmatch(line) for line in text.splitlines() if not line.startswith("#")]
    assert all(found), text
    return {one[0].partition("=")[0].removeprefix(PREFIX): one[3] for one in found if one}


@pytest.mark.parametrize(
    ("demo", "kind", "gpus", "mib"),
    [
        ("dgx-spark", "unified", 1, 121_000),
        ("rtx4090", "discrete", 1, 24_000),
        ("h100x8-mig", "discrete", 8, 81_000),
    ],
)
def test_labels_have_kind_count_and_size_of_gpu_memory(
    shared_daemons: SharedDaemons, demo: str, kind: str, gpus: int, mib: int
) -> None:
    """A GPU that uses System RAM has a size as well."""
    done = memwatch("--url", shared_daemons.demo(demo).url, "node-features")

    assert done.returncode == 0, done.stderr
    labels = labels_in(done.stdout)
    assert (labels["memoryType"], labels["gpu.count"]) == (kind, str(gpus))
    assert int(labels["gpu.memory"]) == pytest.approx(mib, rel=0.05)
    assert 0 <= int(labels["gpu.allocatable"]) <= int(labels["gpu.memory"])


def test_machine_without_gpu_has_no_label_of_its_memory(tmp_path: Path) -> None:
    """An unknown figure has no label."""
    machine = DEPLOY.parent / "tests/machines/n100"
    with running_daemon(tmp_path, f"--procfs={machine / 'proc'}", f"--sysfs={tmp_path}") as daemon:
        labels = labels_in(memwatch("--url", daemon.url, "node-features").stdout)

    assert labels["gpu.count"] == "0"
    assert "gpu.memory" not in labels


def test_file_is_replaced_at_once_and_readable_for_others(tmp_path: Path, shared_daemons: SharedDaemons) -> None:
    file, url = tmp_path / "memwatch", shared_daemons.demo("dgx-spark").url
    file.write_text("old=1\n")
    done = memwatch("--url", url, "node-features", "--output", str(file))
    printed = memwatch("--url", url, "node-features").stdout

    assert (done.returncode, done.stdout) == (0, "")
    assert file.stat().st_mode & 0o777 == 0o644
    assert labels_in(file.read_text()).keys() == labels_in(printed).keys()
    assert [name for name in os.listdir(tmp_path) if name.startswith(".memwatch")] == []


def test_file_of_an_interval_has_a_time_at_which_it_expires(tmp_path: Path, shared_daemons: SharedDaemons) -> None:
    """The first line is the time from which node-feature-discovery ignores the file."""
    file, url = tmp_path / "memwatch", shared_daemons.demo("dgx-spark").url
    command = [*SCRIPT, "--url", url, "node-features", "--output", str(file), "--interval", "10s"]
    process = subprocess.Popen(command, env=clean_environment(), stderr=subprocess.PIPE)
    wait_until(file.exists)
    text = file.read_text()
    try:
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate(timeout=MAX_WAIT_SECONDS)

    expires = datetime.strptime(text.splitlines()[0], "# +expiry-time=%Y-%m-%dT%H:%M:%SZ").replace(
        tzinfo=timezone.utc
    )
    assert 0 < expires.timestamp() - time.time() <= 31


def test_file_that_cannot_be_written_is_named(tmp_path: Path, shared_daemons: SharedDaemons) -> None:
    url = shared_daemons.demo("dgx-spark").url
    done = memwatch("--url", url, "node-features", "--output", str(tmp_path / "missing/file"))

    assert done.returncode == 1
    assert "missing/file: no such file or directory" in done.stderr


def test_interval_without_a_file_is_a_usage_error() -> None:
    done = memwatch("--url", NO_DAEMON, "node-features", "--interval", "10s")

    assert done.returncode == 2
    assert "--interval needs --output FILE" in done.stderr


def node_problem(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the shipped plugin as node-problem-detector does."""
    (rule,) = json.loads((DEPLOY / "kubernetes/node-problem-detector/memwatch.json").read_text())["rules"]
    assert rule["path"] == "/usr/bin/memwatch"
    return memwatch("--url", url, *rule["args"], *arguments)


def test_node_problem_has_the_codes_of_node_problem_detector(tmp_path: Path) -> None:
    """0 without a problem, also at a warning; 1 at the level of --fail-on; 2 for unknown."""
    low = "[pressure]\nmedium_percent = 0.1\nhigh_percent = 0.2\ncritical_percent = 99\n"
    with running_daemon(tmp_path, "--demo", "rtx4090", config=low) as daemon:
        warning = node_problem(daemon.url)
        problem = node_problem(daemon.url, "--fail-on", "high")
    unknown = node_problem(NO_DAEMON)

    assert [one.returncode for one in (warning, problem, unknown)] == [0, 1, 2]
    for one in (warning, problem, unknown):
        assert len(one.stdout.splitlines()) == 1
        assert 0 < len(one.stdout.strip()) <= 80
    assert "MEMWATCH" not in problem.stdout


def test_shipped_plugin_names_one_condition() -> None:
    """The rule sets the condition that is declared, and ends before the plugin's timeout."""
    config = json.loads((DEPLOY / "kubernetes/node-problem-detector/memwatch.json").read_text())
    (condition,), (rule,) = config["conditions"], config["rules"]

    assert config["plugin"] == "custom"
    assert condition["type"] == rule["condition"] == "MemwatchMemoryPressure"
    assert int(rule["timeout"].removesuffix("s")) < int(config["pluginConfig"]["timeout"].removesuffix("s"))
