"""docker-compose.yml and its variants, run by podman-compose: `make test-image`.

The images of Alertmanager and Grafana are not to be had without a registry, so these two services are not started.
podman-compose ignores `uts: host`: memwatchd reports the container's name as the host.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from containers.compose import PROJECT, Compose
from containers.images import OURS
from containers.podman import Podman, execute
from support.daemon_process import get
from support.paths import ROOT
from support.waiting import MAX_WAIT_SECONDS

COMPOSE = ROOT / "docker-compose.yml"
VARIANTS = ROOT / "deploy/compose"
TOKEN = "/var/lib/memwatchd-token/token"


@contextmanager
def up(
    podman: Podman,
    *services: str,
    files: tuple[Path, ...] = (COMPOSE,),
    environ: Mapping[str, str] | None = None,
) -> Iterator[Compose]:
    compose = Compose(podman, files, "host", environ)
    try:
        compose.run("up", "--detach", "--no-build", *services)
        yield compose
    finally:
        compose.run("down", "--volumes", "--timeout", "10", check=False)


def wait_for_query(port: int, expression: str) -> list[Any]:
    """Return the result of a query to Prometheus as soon as it has one."""
    until = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        found: list[Any] = []
        with suppress(OSError):  # it has not started
            found = get(port, f"/api/v1/query?query={expression}").json["data"]["result"]
        if found:
            return found
        assert time.monotonic() < until, f"no result of {expression}"
        time.sleep(0.5)


def doctor(compose: Compose, service: str) -> dict[str, Any]:
    script = f"MEMWATCH_TOKEN=$(cat {TOKEN}) memwatch doctor --json"
    found = json.loads(compose.execute(service, "sh", "-c", script, check=False))
    return {one["id"]: one for one in found["checks"]}


def test_prometheus_scrapes_memwatchd_by_its_name_with_the_token(podman: Podman) -> None:
    """Network alias, host name, token volume, its group and the rules work together."""
    with up(podman, "memwatchd", "prometheus"):
        (found,) = wait_for_query(9090, "up==1")
        rules = get(9090, "/api/v1/rules").json["data"]["groups"]
        anonymous = get(6360, "/metrics").status

    assert found["metric"]["instance"] == "memwatchd:6360"
    assert rules
    assert anonymous == 401


def test_kernel_log_variant_reads_the_log(podman: Podman) -> None:
    """As root with one capability; the plain file has the device alone, so the kernel decides."""
    with up(podman, "memwatchd", files=(COMPOSE, VARIANTS / "kernel-log.yml")) as compose:
        wait_until_healthy(6360)
        found = doctor(compose, "memwatchd")
        status = compose.execute("memwatchd", "cat", "/proc/self/status")

    assert "collectors.kmsg" not in found
    assert "Uid:\t0\t0" in status
    assert "CapEff:\t0000000400000000" in status  # CAP_SYSLOG


def test_server_scrapes_agents_by_their_names_with_tls(podman: Podman, tmp_path: Path) -> None:
    """The server and another machine are agents, with the secrets installed as fleet-secrets.sh says."""
    names = ("memwatchd", "node-2")
    execute("sh", VARIANTS / "fleet-secrets.sh", tmp_path, *names)
    secrets = {name: installed(tmp_path / name) for name in names}
    files = (COMPOSE, VARIANTS / "agent.yml", VARIANTS / "server.yml")
    given = {"AGENT_SECRETS": str(secrets["memwatchd"]), "COMPOSE_PROFILES": "host,server"}
    with up(podman, "memwatchd", "prometheus", files=files, environ=given):
        start_agent(podman, "node-2", secrets["node-2"])
        wait_for_query(9090, "count(up==1)==2")
        found = wait_for_query(9090, "up==1")
        podman.run("rm", "--force", "--volumes", "node-2")

    assert {one["metric"]["instance"] for one in found} == {"memwatchd:6360", "node-2:6360"}


def installed(folder: Path) -> Path:
    """Give the files of a machine to the group of the image's user."""
    for path in (folder, *folder.iterdir()):
        os.chown(path, 0, 64360)
        path.chmod(0o750 if path.is_dir() else 0o640)
    for above in folder.parents[:4]:
        above.chmod(above.stat().st_mode | 0o011)
    return folder


def start_agent(podman: Podman, name: str, secrets: Path) -> None:
    """Start agent.yml's service as another machine in the same network."""
    environ = yaml.safe_load((VARIANTS / "agent.yml").read_text())["services"]["memwatchd"]["environment"]
    environ = {**environ, "MEMWATCHD_WEB_HOSTS": name}
    podman.run("run", "--detach", f"--name={name}", f"--hostname={name}", f"--network={PROJECT}_default",
               "--read-only", "--cap-drop=all", f"--volume={secrets}:/etc/memwatchd:ro",
               *(f"--env={key}={value}" for key, value in environ.items()), OURS)  # fmt: skip


def wait_until_healthy(port: int) -> None:
    until = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        with suppress(OSError):
            if get(port, "/healthz").status == 200:
                return
        assert time.monotonic() < until, "it does not answer"
        time.sleep(0.5)


@pytest.mark.parametrize("profile", ["host", "nvidia", "amd"])
@pytest.mark.parametrize("variant", [None, "kernel-log.yml", "agent.yml"])
def test_each_profile_and_variant_is_accepted(podman: Podman, profile: str, variant: str | None) -> None:
    """podman-compose merges and parses the files, and knows each profile's service."""
    files = (COMPOSE,) if variant is None else (COMPOSE, VARIANTS / variant)
    name = "memwatchd" if profile == "host" else f"memwatchd-{profile}"

    done = Compose(podman, files, profile).run("config")

    assert f"{name}:" in done.stdout
