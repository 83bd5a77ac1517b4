"""Machines found by mDNS: real daemons and the real library, in a network of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memwatch_monitor.neighbours.found import FoundMachine
from memwatchd.neighbours.mdns import SERVICE, Service, read_service
from support.daemon_process import MEMWATCHD, run_program, running_daemon
from support.html_reader import Reader
from support.mdns_pair import NETWORK

# The last words of a service are lost where this machine is too busy to send them within two seconds.
pytestmark = pytest.mark.long
NEEDED_PROGRAMS = ("ip", "unshare")
USER = () if os.geteuid() == 0 else ("--map-root-user",)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    own_network = ["unshare", "--net", *USER, "sh", "-c", NETWORK, "sh"]
    command = [*own_network, sys.executable, "-m", "support.mdns_pair", str(tmp_path_factory.mktemp("mdns"))]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_machine_of_the_network_is_shown_as_found_and_not_joined(seen: Any) -> None:
    (found,) = (one for one in seen["found"] if one["state"] == "found")

    assert (found["name"], found["last_tick"]) == ("ember", None)
    assert found["url"].startswith("http://10.99.0.1:")
    assert found["text"] == f"found by mDNS, not joined: add it to [[neighbours]] with its URL, {found['url']}"
    assert Reader(seen["page"].encode()).open == []
    assert "not joined" in seen["page"]
    assert "No neighbours are configured" in seen["page"]
    assert 'href="machines/ember"' not in seen["page"]
    assert "Machines</a>" in seen["navigation"]
    assert seen["own_page"] == 404
    assert "not joined" in seen["command"]
    assert "never" not in seen["command"]


def test_joined_machine_is_not_shown_as_found(seen: Any) -> None:
    assert {one["name"] for one in seen["joined"] if not one["is_self"]} == {"joined"}


def test_machine_that_ends_disappears(seen: Any) -> None:
    assert [one["is_self"] for one in seen["ended"]] == [True]
    assert "Traceback" not in seen["log"]


def test_machine_with_a_late_address_is_announced() -> None:
    """One gets its address after its start. One listens on IPv6 only: it is not announced, and sees the others."""
    command = ["unshare", "--net", *USER, sys.executable, "-m", "support.mdns_late"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environ)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["early", "late"]] * 3
    assert done.stderr == ""


def test_library_is_not_imported_without_the_setting(tmp_path: Path, seen: Any) -> None:
    with running_daemon(tmp_path, installed=True) as daemon:
        assert daemon.get("/machines").status == 200
        maps = Path(f"/proc/{daemon.pid}/maps").read_text()

    assert "zeroconf" not in maps
    assert seen["has_library"]


def test_missing_library_is_a_clear_error(tmp_path: Path) -> None:
    config = tmp_path / "memwatchd.toml"
    config.write_text("[discovery]\nmdns = true\n")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['zeroconf'] = None\n")
    done = run_program(
        MEMWATCHD, "--config", config, "--check-config", PYTHONPATH=os.pathsep.join([str(hidden), *sys.path])
    )

    assert done.returncode == 78
    assert "needs the zeroconf library, which is not installed: pip install 'memwatchd[mdns]'" in done.stderr
    assert "Traceback" not in done.stderr


def service(name: str = "spark", **fields: Any) -> FoundMachine | None:
    announced: dict[str, Any] = {
        "properties": {b"run": b"0123abcd", b"tls": b"0"},
        "server": "spark.local.",
        "port": 6360,
        "addresses": ("10.0.0.2",),
    }
    return read_service(Service(f"{name}.{SERVICE}", 4500, **{**announced, **fields}))


def test_service_with_tls_is_found_by_its_name() -> None:
    found = service(properties={b"run": b"0123abcd", b"tls": b"1"})

    assert found is not None
    assert found.url == "https://spark.local:6360"


@pytest.mark.parametrize(
    "fields",
    [
        {"properties": {}},
        {"properties": {b"run": b"\xff<b>"}},
        {"port": 0},
        {"addresses": ()},
        {"properties": {b"run": b"0123abcd", b"tls": b"1"}, "server": "a/../b:1@evil.local."},
    ],
)
def test_service_that_is_not_usable_is_ignored(fields: dict[str, Any]) -> None:
    assert service(**fields) is None


def test_names_of_services_are_escaped_and_bounded() -> None:
    found = service("\x1b[2J" + "x" * 500)

    assert found is not None
    assert "\x1b" not in found.name
    assert len(found.name) == 63
