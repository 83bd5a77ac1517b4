"""Authentication: every listener, path and method requires it if it is configured."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.client_process import memwatch
from support.daemon_process import (
    MEMWATCHD,
    QUIET_MACHINE,
    RunningDaemon,
    get,
    run_program,
    running_daemon,
)
from support.login_settings import BEARER, PASSWORD, TOKEN, basic, login_config
from support.mutable_machine import MutableMachine
from support.waiting import MAX_WAIT_SECONDS


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Run a daemon with a login, on a TCP port and a Unix socket."""
    folder = tmp_path_factory.mktemp("login")
    listen = ("--listen", f"unix:{folder}/socket")
    with running_daemon(folder, *listen, config=login_config(folder)) as running:
        yield running


def paths_of(daemon: RunningDaemon) -> list[str]:
    described: list[str] = list(daemon.get("/openapi.json", **BEARER).json["paths"])
    pages = [
        "/",
        "/processes",
        "/about",
        "/live?page=overview",
        "/docs",
        "/runbooks",
        "/openapi.json",
        "/static/app.js",
        "/nothing",
    ]
    return [*described, *pages, "//healthz", "/healthz/", "/static/../healthz", "/%68ealthz/x"]


def test_every_path_requires_a_login(daemon: RunningDaemon) -> None:
    """401 with a challenge for every method. Open are health endpoints, without memory data, and a style."""
    for path in paths_of(daemon):
        for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS"):
            answer = get(daemon.port, path, method=method)
            if path in ("/healthz", "/readyz"):
                continue
            assert answer.status == 401, (method, path)
            assert answer.headers["www-authenticate"].startswith("Basic "), path
            assert "Bearer" in answer.headers["www-authenticate"]
    for path in ("/healthz", "/readyz"):
        assert set(daemon.get(path).json) == {"status", "age_seconds"}
    assert daemon.get("/static/app.css").headers["content-type"].startswith("text/css")


def test_wrong_credentials_are_401_and_not_echoed(tmp_path: Path) -> None:
    """Including nearly correct ones."""
    wrong = (
        basic("ada", "wrong"),
        basic("eve", PASSWORD),
        basic("", ""),
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Token {TOKEN}"},
        {"Authorization": "Basic %%%"},
        {"Authorization": ""},
        {"Authorization": TOKEN},
    )
    with running_daemon(tmp_path, config=login_config(tmp_path)) as daemon:
        answers = [daemon.get("/api/v1/snapshot", **headers) for headers in wrong]

    assert [answer.status for answer in answers] == [401] * len(wrong)
    assert not any(TOKEN[:-1] in answer.text or PASSWORD in answer.text for answer in answers)


@pytest.mark.parametrize("headers", [BEARER, basic("ada", PASSWORD)], ids=["token", "password"])
def test_valid_credentials_give_full_access(daemon: RunningDaemon, headers: Mapping[str, str]) -> None:
    """Data, pages, metrics, and actions."""
    for path in ("/api/v1/snapshot", "/metrics", "/", "/static/app.css"):
        assert daemon.get(path, **headers).status == 200, path
    assert get(daemon.port, "/api/v1/release?seconds=1", headers, "POST").status == 200


def test_browser_logs_in_with_the_token_as_password(tmp_path: Path) -> None:
    """Without users, the challenge makes a browser ask; user `token` and the token give access, others do not."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with running_daemon(tmp_path, config=f'[web.auth]\nbearer_token = "file:{token}"\n') as daemon:
        assert daemon.get("/").headers["www-authenticate"].startswith("Basic ")
        assert daemon.get("/", **basic("token", TOKEN)).status == 200
        for user, password in (("token", TOKEN[:-1]), ("token", ""), ("root", TOKEN), ("", TOKEN)):
            assert daemon.get("/", **basic(user, password)).status == 401, user


def test_user_named_token_is_rejected(tmp_path: Path) -> None:
    """The name is reserved: its password would be compared with the token."""
    settings = tmp_path / "memwatchd.toml"
    settings.write_text(login_config(tmp_path).replace("ada =", "token ="))
    done = check_config(settings)

    assert done.returncode == 78
    assert "is reserved: its password is the bearer token; choose another name" in done.stderr


def test_client_uses_the_token_from_the_environment(daemon: RunningDaemon) -> None:
    """MEMWATCH_TOKEN or the Unix socket work. Without them, the error names the login."""

    assert "System RAM" in memwatch("--url", daemon.url, "status", MEMWATCH_TOKEN=TOKEN).stdout
    assert "System RAM" in memwatch("--url", f"unix:{daemon.log.parent}/socket", "status").stdout
    rejected = memwatch("--url", daemon.url, "status")
    assert rejected.returncode == 1
    assert "login required" in rejected.stderr


def test_two_authorization_headers_are_401(daemon: RunningDaemon) -> None:
    """Programs differ in which of the two they use."""
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=MAX_WAIT_SECONDS) as connection:
        field = f"Authorization: Bearer {TOKEN}\r\n"
        connection.sendall(f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{field}{field}\r\n".encode())

        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")


def test_unix_socket_needs_no_login_and_has_mode_0660(daemon: RunningDaemon) -> None:
    """The kernel restricts connections to owner and group."""
    path = daemon.log.parent / "socket"

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /api/v1/pools HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = connection.recv(1 << 16)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert path.stat().st_mode & 0o777 == 0o660


def test_foreign_host_is_rejected_before_a_challenge(daemon: RunningDaemon) -> None:
    """On both listeners. Under the name of another site a browser is not asked for a password."""
    answer = daemon.get("/metrics", Host="evil.example")

    assert answer.status == 400
    assert "www-authenticate" not in answer.headers
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(daemon.log.parent / "socket"))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://203.0.113.7"},
        {"Origin": "http://localhost:8080"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_cross_site_requests_with_stored_credentials_are_403(
    daemon: RunningDaemon, headers: Mapping[str, str]
) -> None:
    """Browsers add stored passwords to requests of any page. The origin decides, numeric or not."""
    answer = get(daemon.port, "/api/v1/release?seconds=1", {**headers, **basic("ada", PASSWORD)}, "POST")

    assert answer.status == 403
    assert "access-control-allow-origin" not in answer.headers


def test_same_origin_request_is_accepted(daemon: RunningDaemon) -> None:
    """The origin matches the Host header."""
    headers = {"Origin": f"http://127.0.0.1:{daemon.port}", "Sec-Fetch-Site": "same-origin", **BEARER}

    assert get(daemon.port, "/api/v1/release?seconds=1", headers, "POST").status == 200


def test_sighup_replaces_the_token(tmp_path: Path) -> None:
    """The old token is rejected after SIGHUP. Neither is logged."""
    with running_daemon(tmp_path, config=login_config(tmp_path)) as daemon:
        (tmp_path / "token").write_text("another-token-of-some-length")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_log("web.auth.bearer_token: ")

        assert daemon.get("/metrics", Authorization="Bearer another-token-of-some-length").status == 200
        assert daemon.get("/metrics", **BEARER).status == 401
        log = daemon.read_log()
    assert TOKEN not in log
    assert "another-token" not in log


def test_network_listener_without_login_is_rejected(tmp_path: Path) -> None:
    """The error names the remedy. --insecure permits it explicitly."""
    settings = tmp_path / "memwatchd.toml"
    for address in ("0.0.0.0:0", "[::]:0", "gpu7.example:0"):
        settings.write_text(f'[web]\nlisten = ["127.0.0.1:0", "{address}"]\n')
        done = check_config(settings)
        assert done.returncode == 78, address
        assert f"other machines could read all data without a login at {address}" in done.stderr
        assert "bearer_token" in done.stderr
        assert check_config(settings, "--insecure").returncode == 0
    settings.write_text('[web]\nlisten = ["0.0.0.0:0"]\n' + login_config(tmp_path))
    assert check_config(settings).returncode == 0


def check_config(settings: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_program(MEMWATCHD, "--config", settings, "--check-config", *arguments)


def test_command_lines_are_hidden_from_unauthenticated_networks(tmp_path: Path) -> None:
    """With command_lines = true, shown on loopback without passwords, absent on an open network listener."""
    config = "[processes]\ncommand_lines = true\n"
    code = "import time; print(flush=True); time.sleep(60)"
    machine = MutableMachine.of(QUIET_MACHINE.name, tmp_path / "machine")
    child = subprocess.Popen([sys.executable, "-c", code, "--password=hunter2"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline()
        machine.show(child.pid)
        with child.stdout, running_daemon(tmp_path, *machine.arguments, config=config) as daemon:
            shown = daemon.get("/api/v1/processes").text
            assert "time.sleep(60) --password=***" in shown
            assert "hunter2" not in shown
        listen = "--listen", "0.0.0.0:0", "--insecure"
        with running_daemon(tmp_path, *machine.arguments, *listen, config=config) as daemon:
            assert "time.sleep" not in daemon.get("/api/v1/processes").text
    finally:
        child.kill()
        child.wait()


def test_check_config_hides_token_and_hash(tmp_path: Path) -> None:
    """Users and the existence of a token are shown."""
    settings = tmp_path / "memwatchd.toml"
    settings.write_text(login_config(tmp_path))

    done = check_config(settings)

    assert 'web.auth.bearer_token = "(hidden)"' in done.stdout
    assert "web.auth.users.ada" in done.stdout
    assert "$2b$" not in done.stdout
    assert TOKEN not in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '[web.auth]\nbearer_token = "hunter2hunter2hunter2"',
            "is not file:/PATH, credential:NAME or env:NAME",
        ),
        ('[web.auth]\nbearer_token = "env:NOWHERE"', "names the environment variable NOWHERE, which is not set"),
        ('[web.auth]\nbearer_token = "file:/nonexistent/token"', "cannot be read (No such file or directory)"),
        ('[web.auth.users]\nada = "hunter2hunter2hunter2"', "is not a bcrypt hash with a cost of 4 to 16"),
        ('[web.auth.users]\n"a:b" = "x"', "is not a user name"),
        ('[web.tls]\nkey_file = "/x"', "has no effect without cert_file"),
        ('[web.tls]\ncert_file = "/nonexistent/tls.pem"', "no such file or directory"),
        ('[web.tls]\ncert_file = "tls.pem"', "is not the path of a file"),
    ],
)
def test_invalid_login_settings_are_rejected(tmp_path: Path, text: str, words: str) -> None:
    """The error has the key and a remedy, but no secret."""
    settings = tmp_path / "memwatchd.toml"
    settings.write_text(text)

    done = check_config(settings)

    assert done.returncode == 78
    assert words in done.stderr
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr


def test_world_readable_token_is_a_warning(tmp_path: Path) -> None:
    """A secret with mode 0644 is used and logged as public."""
    config = login_config(tmp_path)
    (tmp_path / "token").chmod(0o644)
    with running_daemon(tmp_path, config=config) as daemon:
        log = daemon.read_log()

    assert f"every user of this machine can read the secret in {tmp_path}/token" in log
