"""Test the login of the image and of Compose: each service's entry point and environment, run as processes."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.daemon_process import QUIET_MACHINE, RunningDaemon, clean_environment, running_daemon
from support.dockerfile import stages_of
from support.ingest_client import own_ticks
from support.login_settings import TOKEN, basic
from support.mutable_machine import MutableMachine
from support.paths import ROOT
from support.prometheus_servers import prometheus, shipped
from support.waiting import MAX_WAIT_SECONDS

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
OURS = [name for name in SERVICES if name.startswith("memwatchd")]
_, FINAL = stages_of((ROOT / "deploy/Dockerfile").read_text())
SCRIPT = str(ROOT / "deploy/with-secret.sh")
TOKEN_FILE = "/var/lib/memwatchd-token/token"
LOGIN = "MEMWATCHD_WEB_AUTH_BEARER_TOKEN"
STARTERS = 8


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@contextmanager
def running_image(folder: Path, **environ: str) -> Iterator[tuple[RunningDaemon, Path]]:
    """Run the image's entry point with its environment and this token folder. Only the address differs."""
    token = folder / "token-volume/token"
    token.parent.mkdir(exist_ok=True)
    given = {name: value for name, value in FINAL.environment.items() if name.startswith("MEMWATCHD_")}
    given = {name: value.replace(TOKEN_FILE, str(token)) for name, value in given.items()} | environ
    given.pop("MEMWATCHD_LISTEN")
    places = {"/opt/memwatchd/with-secret.sh": SCRIPT, TOKEN_FILE: str(token)}
    through = [places.get(word, word) for word in FINAL.entrypoint[:-1]]
    machine = MutableMachine(folder / "machine")
    if not machine.folder.exists():
        machine = MutableMachine.of(QUIET_MACHINE.name, machine.folder)
        machine.show(os.getpid())
    with running_daemon(folder, *machine.arguments, environ=given, through=through) as daemon:
        yield daemon, token


def test_image_creates_a_token_at_its_first_start_and_requires_it(tmp_path: Path) -> None:
    """64 hexadecimal digits, mode 0640. The log names the file, not the token; the next start keeps it."""
    with running_image(tmp_path) as (daemon, file):
        token = file.read_text()
        refused = {path: daemon.get(path).status for path in ("/", "/metrics", "/api/v1/snapshot")}
        health = [daemon.get(path).status for path in ("/healthz", "/readyz")]
        accepted = daemon.get("/metrics", **bearer(token)).status
        in_browser = daemon.get("/", **basic("token", token)).status
        first_log = daemon.read_log()
    with running_image(tmp_path) as (daemon, file):
        accepted_again = daemon.get("/metrics", **bearer(token)).status
        second_log = daemon.read_log()

    assert re.fullmatch(r"[0-9a-f]{64}", token)
    assert file.stat().st_mode & 0o777 == 0o640
    assert set(refused.values()) == {401}, refused
    assert health == [200, 200]
    assert (accepted, in_browser, accepted_again) == (200, 200, 200)
    assert f"created a secret in {file}" in first_log
    assert f"the secret is in {file}" in second_log
    assert token not in first_log + second_log
    assert list(file.parent.iterdir()) == [file]


def test_given_token_replaces_the_created_one(tmp_path: Path) -> None:
    """A secret file or variable is used, and no token is created."""
    for reference in (f"file:{tmp_path / 'secret'}", "env:SECRET"):
        (tmp_path / "secret").write_text(TOKEN)
        (tmp_path / "secret").chmod(0o600)
        with running_image(tmp_path, **{LOGIN: reference, "SECRET": TOKEN}) as (daemon, file):
            assert daemon.get("/metrics").status == 401
            assert daemon.get("/metrics", **bearer(TOKEN)).status == 200
            assert not file.exists()


def run_script(file: Path, *command: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["sh", SCRIPT, str(file), *command],
        env=clean_environment(**environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_concurrent_first_starts_share_one_secret(tmp_path: Path) -> None:
    """Every one of eight starters reads the same complete secret."""
    file = tmp_path / "secret"
    started = [run_script(file, "cat", str(file), NAMED=str(file)) for _ in range(STARTERS)]
    read = {one.communicate(timeout=MAX_WAIT_SECONDS)[0] for one in started}

    assert read == {file.read_text()}
    assert len(file.read_text()) == 64
    assert list(tmp_path.iterdir()) == [file]


def test_existing_file_or_link_is_never_replaced(tmp_path: Path) -> None:
    """A link prepared by another process is refused, and its target is not written."""
    target, link, kept = tmp_path / "target", tmp_path / "link", tmp_path / "kept"
    link.symlink_to(target)
    kept.write_text(TOKEN)

    refused = run_script(link, "true", NAMED=str(link))
    _, error = refused.communicate(timeout=MAX_WAIT_SECONDS)
    unchanged = run_script(kept, "cat", str(kept), NAMED=str(kept)).communicate(timeout=MAX_WAIT_SECONDS)

    assert refused.returncode == 78
    assert f"cannot create {link}" in error
    assert not target.exists()
    assert unchanged[0] == TOKEN


def test_unusable_folder_prevents_the_start(tmp_path: Path) -> None:
    """The error names the folder's file and the remedy. The command is not run without its secret."""
    file = tmp_path / "missing/secret"
    done = run_script(file, "echo", "started", NAMED=str(file))
    output, error = done.communicate(timeout=MAX_WAIT_SECONDS)

    assert done.returncode == 78
    assert "started" not in output
    assert f"cannot create {file}: its folder must be writable for user {os.geteuid()}" in error


@pytest.mark.parametrize("name", OURS)
def test_compose_keeps_the_token_in_its_own_volume(name: str) -> None:
    """Its folder belongs to the image's group, with which every profile runs. No profile is open."""
    service = SERVICES[name]
    _, _, group = str(service.get("user", FINAL.user)).partition(":")
    install = next(words for step, words in FINAL.steps if step == "RUN" and "memwatchd-token" in words)

    assert {"type": "volume", "source": "token", "target": str(Path(TOKEN_FILE).parent)} in service["volumes"]
    assert f"--group={group} --mode=0770 {Path(TOKEN_FILE).parent}" in install
    assert not {LOGIN, "MEMWATCHD_INSECURE"} & service["environment"].keys()
    assert "MEMWATCHD_INSECURE" not in FINAL.environment


def test_prometheus_of_compose_scrapes_with_the_token(tmp_path: Path) -> None:
    """The shipped configuration uses the token of the image's first start. With a wrong one the scrape fails."""
    with running_image(tmp_path) as (daemon, token):
        changes = {"memwatchd:6360": f"127.0.0.1:{daemon.port}", TOKEN_FILE: str(token), "15s": "1s"}
        text = shipped("compose/prometheus.yml", changes).replace("rules/*.yml", "none/*.yml")
        with prometheus(tmp_path, text) as server:
            server.wait_for('up{job="memwatchd"} == 1')
            server.wait_for("sum(memwatch_pool_size_bytes) > 0")
            token.write_text("0" * 64)
            server.wait_for('up{job="memwatchd"} == 0')


def test_prometheus_of_compose_may_read_the_token() -> None:
    """It mounts the token's volume read-only, and has the group that may read the file."""
    service = SERVICES["prometheus"]

    (mount,) = (one for one in service["volumes"] if isinstance(one, dict))
    assert (mount["source"], mount["target"]) == ("token", str(Path(TOKEN_FILE).parent))
    assert mount["read_only"] is True
    assert mount["volume"] == {"nocopy": True}
    assert service["group_add"] == [FINAL.user.partition(":")[2]]


def post(daemon: RunningDaemon, path: str, body: object, headers: Mapping[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=MAX_WAIT_SECONDS)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        return connection.getresponse().status
    finally:
        connection.close()


def test_reports_and_marks_are_accepted_with_the_token(tmp_path: Path) -> None:
    """`import memwatch` posts to these routes. Without the token they answer 401."""
    report = {"pid": os.getpid(), "start_ticks": own_ticks(), "claims": [{"name": "PyTorch", "allocated_bytes": 1}]}
    with running_image(tmp_path) as (daemon, file):
        token = bearer(file.read_text())
        for path, body in (("/api/v1/marks", {"text": "epoch 1"}), ("/api/v1/reports", report)):
            assert post(daemon, path, body, {}) == 401
            assert post(daemon, path, body, token) == 200, path
        events = daemon.get("/api/v1/events", **token).text

    assert "epoch 1" in events


def test_grafana_admin_has_a_created_password(tmp_path: Path) -> None:
    """Its entry point creates the file that Grafana reads the password from. No default password exists."""
    grafana = SERVICES["grafana"]
    environment: Mapping[str, str] = grafana["environment"]
    shell, script, file, command = grafana["entrypoint"]
    here = tmp_path / "admin-password"
    mounted = dict(one.split(":")[1::-1] for one in grafana["volumes"])
    started = run_script(here, "cat", str(here), GF_SECURITY_ADMIN_PASSWORD__FILE=str(here))

    assert (shell, command) == ("/bin/sh", "/run.sh")
    assert mounted[script] == "./deploy/with-secret.sh"
    assert environment["GF_SECURITY_ADMIN_PASSWORD__FILE"] == file
    assert "GF_SECURITY_ADMIN_PASSWORD" not in environment
    assert mounted[str(Path(file).parent)] == "grafana"
    assert re.fullmatch(r"[0-9a-f]{64}", started.communicate(timeout=MAX_WAIT_SECONDS)[0])
