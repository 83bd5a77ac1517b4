"""docker-compose.yml and its variants, run by podman-compose: `make test-image`.

The images of Alertmanager and Grafana are not to be had without a registry, so these two services are not started.
podman-compose ignores `uts: host`: memwatchd reports the container's name as the host.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from containers.compose import Compose
from containers.podman import Podman
from support.daemon_process import get
from support.paths import ROOT
from support.waiting import MAX_WAIT_SECONDS

COMPOSE = ROOT / "docker-compose.yml"
VARIANTS = ROOT / "deploy/compose"
TOKEN = "/var/lib/memwatchd-token/token"


@contextmanager
def up(
    podman: Podman, *services: str, files: tuple[Path, ...] = (COMPOSE,), profile: str = "host"
) -> Iterator[Compose]:
    compose = Compose(podman, files, profile)
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


def wait_until_healthy(port: int) -> None:
    until = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        with suppress(OSError):
            if get(port, "/healthz").status == 200:
                return
        assert time.monotonic() < until, "it does not answer"
        time.sleep(0.5)


@pytest.mark.parametrize("profile", ["host", "nvidia", "amd"])
@pytest.mark.parametrize("variant", [None, "kernel-log.yml"])
def test_each_profile_and_variant_is_accepted(podman: Podman, profile: str, variant: str | None) -> None:
    """podman-compose merges and parses the files, and knows each profile's service."""
    files = (COMPOSE,) if variant is None else (COMPOSE, VARIANTS / variant)
    name = "memwatchd" if profile == "host" else f"memwatchd-{profile}"

    done = Compose(podman, files, profile).run("config")

    assert f"{name}:" in done.stdout
