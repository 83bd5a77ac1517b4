"""Agents on many machines and one server: the secrets, the variants of Compose, and a real Prometheus."""

from __future__ import annotations

import json
import ssl
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.daemon_process import RunningDaemon, running_daemon
from support.dockerfile import stages_of
from support.paths import ROOT
from support.prometheus_servers import prometheus, shipped
from support.waiting import MAX_WAIT_SECONDS

NEEDED_PROGRAMS = ("openssl",)
SCRIPT = ROOT / "deploy/compose/fleet-secrets.sh"
FOLDER = "/etc/memwatchd"
BASE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
AGENT: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose/agent.yml").read_text())["services"]
SERVER: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose/server.yml").read_text())["services"]
_, IMAGE = stages_of((ROOT / "deploy/Dockerfile").read_text())


def create_secrets(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", SCRIPT, folder, *names], capture_output=True, text=True, check=False)


def agent_settings(folder: Path) -> dict[str, str]:
    """Return the settings of agent.yml, with the files of one machine."""
    environ = AGENT["memwatchd"]["environment"]
    own = {name: value for name, value in environ.items() if not value.startswith("$")}
    return {name: value.replace(FOLDER, str(folder)) for name, value in own.items()}


def test_secrets_are_created_once_and_kept(tmp_path: Path) -> None:
    """Another machine gets the same token and authority. Only the owner may read a file."""
    first = create_secrets(tmp_path, "node-1", "node-2")
    token, authority = (tmp_path / "token").read_text(), (tmp_path / "ca.pem").read_text()
    second = create_secrets(tmp_path, "node-3.example.org")
    machines = json.loads((tmp_path / "node-1/machines.json").read_text())

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert len(token) == 64
    assert ((tmp_path / "node-3.example.org/token").read_text(), (tmp_path / "ca.pem").read_text()) == (
        token,
        authority,
    )
    assert machines == [{"targets": ["node-1:6360", "node-2:6360", "node-3.example.org:6360"]}]
    assert not (tmp_path / "node-1/ca.key").exists()
    assert all(stat.S_IMODE(file.stat().st_mode) & 0o077 == 0 for file in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("name", "option"), [("10.1.2.3", "-verify_ip"), ("node-1", "-verify_hostname"), ("17", "-verify_hostname")]
)
def test_certificate_is_valid_for_the_name_or_address(tmp_path: Path, name: str, option: str) -> None:
    """Clients look for an IPv4 address among the addresses of a certificate, not among its names."""
    done = create_secrets(tmp_path, name)
    files = tmp_path / "ca.pem", tmp_path / name / "tls.pem"
    verified = subprocess.run(["openssl", "verify", "-CAfile", files[0], option, name, files[1]], check=False)

    assert (done.returncode, verified.returncode) == (0, 0), done.stderr


@pytest.mark.parametrize("names", [(), ("../etc",), ("a b",), ("-x",), ("",)])
def test_unusable_names_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A name becomes a folder and part of a certificate. Nothing is created."""
    done = create_secrets(tmp_path / "secrets", *names)

    assert done.returncode == 2
    assert done.stderr
    assert not (tmp_path / "secrets").exists()


@pytest.mark.parametrize("name", ["memwatchd", "memwatchd-nvidia", "memwatchd-amd"])
def test_agent_reads_only_its_secrets_and_starts_nothing_else(name: str) -> None:
    """The other services need the profile server. The token is not the one that the image creates."""
    agent = AGENT[name]
    (mount,) = agent["volumes"]
    token = agent["environment"]["MEMWATCHD_WEB_AUTH_BEARER_TOKEN"]

    assert mount == {
        "type": "bind", "source": "${AGENT_SECRETS:-/etc/memwatchd}", "target": FOLDER, "read_only": True
    }  # fmt: skip
    assert token != IMAGE.environment["MEMWATCHD_WEB_AUTH_BEARER_TOKEN"]
    assert {one for one in AGENT if AGENT[one].get("profiles") == ["server"]} == BASE.keys() - {
        one for one in BASE if one.startswith("memwatchd")
    }


def test_server_mounts_its_configuration_in_place_of_the_other() -> None:
    """Compose replaces a volume of the same target."""
    config, secrets = SERVER["prometheus"]["volumes"]
    source, target, _ = config.split(":")

    assert (ROOT / source).is_file()
    assert any(str(one).split(":")[1:2] == [target] for one in BASE["prometheus"]["volumes"])
    assert secrets["target"] == FOLDER


def test_prometheus_scrapes_two_daemons_with_tls_and_token(tmp_path: Path) -> None:
    """Real daemons with the settings of agent.yml. A third, with another token and authority, stays down."""
    name = "localhost"
    ours, foreign = tmp_path / "ours", tmp_path / "foreign"
    for folder in (ours, foreign):
        assert create_secrets(folder, name).returncode == 0
    with (
        agent(tmp_path / "one", ours) as one,
        agent(tmp_path / "two", ours) as two,
        agent(tmp_path / "three", foreign) as stranger,
    ):
        targets = [f"{name}:{daemon.port}" for daemon in (one, two, stranger)]
        (ours / "machines.json").write_text(json.dumps([{"targets": targets}]))
        text = shipped("compose/fleet.yml", {FOLDER: str(ours), "15s": "1s", "rules/*.yml": "none/*.yml"})
        with prometheus(tmp_path, text) as server:
            up = server.wait_for('count(up{job="memwatchd"} == 1) == 2')
            down = server.wait_for('up{job="memwatchd"} == 0')
            server.wait_for("count(memwatch_pool_size_bytes) == 2")

    assert up
    assert [one["metric"]["instance"] for one in down] == [targets[2]]


def agent(folder: Path, secrets: Path) -> Any:
    folder.mkdir()
    files = secrets / "localhost"
    return running_daemon(folder, environ=agent_settings(files), tls=unchecked(files))


def unchecked(files: Path) -> ssl.SSLContext:
    """Return a context for 127.0.0.1, the address by which tests reach the daemon."""
    context = ssl.create_default_context(cafile=str(files / "ca.pem"))
    context.check_hostname = False
    return context


def test_health_check_of_the_agent_succeeds_with_tls(tmp_path: Path) -> None:
    """The image's check speaks HTTP. The agent's accepts the certificate of another name."""
    assert create_secrets(tmp_path / "secrets", "localhost").returncode == 0
    with agent(tmp_path / "one", tmp_path / "secrets") as daemon:
        assert run_health_check(daemon, AGENT["memwatchd"]["healthcheck"]["test"][1:]) == 0
        assert run_health_check(daemon, list(IMAGE.healthcheck)) != 0


def run_health_check(daemon: RunningDaemon, command: list[str]) -> int:
    there = [word.replace("127.0.0.1:6360", f"127.0.0.1:{daemon.port}") for word in command]
    return subprocess.run(there, capture_output=True, check=False, timeout=MAX_WAIT_SECONDS).returncode
