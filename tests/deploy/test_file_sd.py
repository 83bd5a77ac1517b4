"""Test `memwatch machines --file-sd` with a real Prometheus that reads the file."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from memwatch.cli.http import parse_url
from memwatch.cli.machines import build_targets
from memwatch.core.model import Absent
from support.client_process import memwatch
from support.daemon_process import running_daemon
from support.neighbours import folder, neighbours, wait_for_state
from support.prometheus_servers import prometheus, shipped
from support.sample_fleet import listed_machine

NEEDED_PROGRAMS = ("prometheus", "promtool")

LOGIN = "authorization: {credentials_file: /etc/prometheus/memwatchd-token}"


def test_prometheus_scrapes_the_machines_of_the_file(tmp_path: Path) -> None:
    """The shipped configuration of file discovery, with the file written by the command."""
    targets = tmp_path / "machines.json"
    with ExitStack() as stack:
        ember = stack.enter_context(running_daemon(folder(tmp_path, "ember"), "--demo", "rtx4090"))
        config = neighbours({"ember": ember.url})
        spark = stack.enter_context(running_daemon(folder(tmp_path, "spark"), "--demo", "dgx-spark", config=config))
        wait_for_state(spark, "ember", "up")
        done = memwatch("--url", spark.url, "machines", "--file-sd", str(targets))
        text = shipped("prometheus/discovery/file.yml", {f"    {LOGIN}\n": "    scrape_interval: 1s\n"})
        server = stack.enter_context(prometheus(tmp_path, text))
        server.wait_for("count(up == 1) == 2")
        (named,) = server.wait_for('memwatch_device_info{neighbour="ember"}')

    assert (done.returncode, done.stdout) == (0, f"2 targets in {targets}\n")
    assert named["metric"]["instance"] == f"127.0.0.1:{ember.port}"
    assert targets.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://spark-2:6360", {"targets": ["spark-2:6360"], "labels": {}}),
        ("http://[fd00::2]:6360", {"targets": ["[fd00::2]:6360"], "labels": {}}),
        (
            "https://gpu.example.org/memory",
            {
                "targets": ["gpu.example.org:443"],
                "labels": {"__scheme__": "https", "__metrics_path__": "/memory/metrics"},
            },
        ),
    ],
)
def test_address_becomes_a_target_and_labels(url: str, expected: object) -> None:
    """Scheme and path are labels of Prometheus, which it does not keep in series."""
    found = build_targets([listed_machine("here", Absent.NOT_AVAILABLE, is_self=True, url=None)], parse_url(url))

    assert found.groups == [expected]


def test_socket_files_are_left_out_and_named(tmp_path: Path) -> None:
    """The daemon is reached by its socket file: only the neighbour is a target."""
    file, socket = tmp_path / "machines.json", tmp_path / "m.sock"
    config = neighbours({"ember": "http://127.0.0.1:1", "iris": f"unix:{tmp_path / 'none.sock'}"})
    with running_daemon(tmp_path, "--demo", "dgx-spark", "--listen", f"unix:{socket}", config=config):
        done = memwatch("--url", f"unix:{socket}", "machines", "--file-sd", str(file))

    assert done.returncode == 0
    assert "left out, as their address is a socket file: spark-1a2b, iris" in done.stderr
    assert json.loads(file.read_text()) == [{"targets": ["127.0.0.1:1"], "labels": {"neighbour": "ember"}}]


def test_file_without_targets_is_not_written(tmp_path: Path) -> None:
    file, socket = tmp_path / "machines.json", tmp_path / "m.sock"
    with running_daemon(tmp_path, "--demo", "dgx-spark", "--listen", f"unix:{socket}"):
        done = memwatch("--url", f"unix:{socket}", "machines", "--file-sd", str(file))

    assert done.returncode == 1
    assert "a socket file cannot be scraped; use --url" in done.stderr
    assert not os.path.exists(file)
