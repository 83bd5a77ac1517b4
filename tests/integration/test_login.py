"""With a login set, no stranger gets a figure: on every listener, at every path, by every method."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.daemon_process import MEMWATCHD, RunningDaemon, clean_environment, get, running_daemon
from support.login_settings import BEARER, PASSWORD, TOKEN, basic, login_config
from support.waiting import MAX_WAIT_SECONDS


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with a login, at a port and at a socket file."""
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
        "/openapi.json",
        "/static/app.css",
        "/nothing",
    ]
    return [*described, *pages, "//healthz", "/healthz/", "/static/../healthz", "/%68ealthz/x"]


def test_no_path_tells_a_stranger_anything(daemon: RunningDaemon) -> None:
    """401 with a challenge everywhere, for every method; only health is open, and has no figure in it."""
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


@pytest.mark.parametrize(
    "headers",
    [
        basic("ada", "wrong"),
        basic("eve", PASSWORD),
        basic("", ""),
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Token {TOKEN}"},
        {"Authorization": "Basic %%%"},
        {"Authorization": ""},
        {"Authorization": TOKEN},
    ],
)
def test_a_wrong_login_is_no_login(daemon: RunningDaemon, headers: Mapping[str, str]) -> None:
    """Nearly right is wrong, and the answer repeats nothing of what was shown."""
    answer = daemon.get("/api/v1/snapshot", **headers)

    assert answer.status == 401
    assert TOKEN[:-1] not in answer.text
    assert PASSWORD not in answer.text


@pytest.mark.parametrize("headers", [BEARER, basic("ada", PASSWORD)], ids=["token", "password"])
def test_who_is_known_gets_everything(daemon: RunningDaemon, headers: Mapping[str, str]) -> None:
    """Figures, pages, metrics, and what changes something."""
    for path in ("/api/v1/snapshot", "/metrics", "/", "/static/app.css"):
        assert daemon.get(path, **headers).status == 200, path
    assert get(daemon.port, "/api/v1/release?seconds=1", headers, "POST").status == 200


def test_the_client_shows_the_token_that_the_environment_holds(daemon: RunningDaemon) -> None:
    """With MEMWATCH_TOKEN, or over the socket file, it is answered; without, it says what is missing."""

    def memwatch(url: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(MEMWATCHD).with_name("memwatch")), "--url", url, "status"]
        env = clean_environment(**environ)
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)

    assert "System RAM" in memwatch(daemon.url, MEMWATCH_TOKEN=TOKEN).stdout
    assert "System RAM" in memwatch(f"unix:{daemon.log.parent}/socket").stdout
    rejected = memwatch(daemon.url)
    assert rejected.returncode == 1
    assert "login required" in rejected.stderr


def test_two_authorizations_are_none(daemon: RunningDaemon) -> None:
    """Which of them would count is a question that two programs answer differently."""
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=MAX_WAIT_SECONDS) as connection:
        field = f"Authorization: Bearer {TOKEN}\r\n"
        connection.sendall(f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{field}{field}\r\n".encode())

        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")


def test_a_socket_file_needs_no_login_and_is_for_owner_and_group(daemon: RunningDaemon) -> None:
    """Its mode is the login: the kernel lets nobody else connect."""
    path = daemon.log.parent / "socket"

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /api/v1/pools HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = connection.recv(1 << 16)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert path.stat().st_mode & 0o777 == 0o660


def test_foreign_hosts_are_refused_before_a_login_is_looked_at(daemon: RunningDaemon) -> None:
    """On both listeners: a browser that was rebound shows a password it has stored."""
    assert daemon.get("/metrics", Host="evil.example", **BEARER).status == 400
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
def test_no_other_site_changes_anything_with_a_stored_login(
    daemon: RunningDaemon, headers: Mapping[str, str]
) -> None:
    """Browsers add stored passwords to what any page sends: the page's origin decides, numeric or not."""
    answer = get(daemon.port, "/api/v1/release?seconds=1", {**headers, **basic("ada", PASSWORD)}, "POST")

    assert answer.status == 403
    assert "access-control-allow-origin" not in answer.headers


def test_its_own_page_may_change_something(daemon: RunningDaemon) -> None:
    """The origin is what the page was asked for as."""
    headers = {"Origin": f"http://127.0.0.1:{daemon.port}", "Sec-Fetch-Site": "same-origin", **BEARER}

    assert get(daemon.port, "/api/v1/release?seconds=1", headers, "POST").status == 200


def test_a_token_is_replaced_by_a_reload(tmp_path: Path) -> None:
    """The old one ends with SIGHUP, and no restart is needed; neither is in the log."""
    with running_daemon(tmp_path, config=login_config(tmp_path)) as daemon:
        (tmp_path / "token").write_text("another-token-of-some-length")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_log("web.auth.bearer_token: ")

        assert daemon.get("/metrics", Authorization="Bearer another-token-of-some-length").status == 200
        assert daemon.get("/metrics", **BEARER).status == 401
        log = daemon.log.read_text()
    assert TOKEN not in log
    assert "another-token" not in log


def test_figures_are_not_shown_to_a_network_by_mistake(tmp_path: Path) -> None:
    """Without a login it does not start where others can reach it, and says what would do; insecure means it."""
    settings = tmp_path / "memwatchd.toml"
    for address in ("0.0.0.0:0", "[::]:0", "gpu7.example:0"):
        settings.write_text(f'[web]\nlisten = ["127.0.0.1:0", "{address}"]\n')
        done = checked(settings)
        assert done.returncode == 78, address
        assert f"everybody who reaches {address} could read all figures" in done.stderr
        assert "bearer_token" in done.stderr
        assert checked(settings, "--insecure").returncode == 0
    settings.write_text('[web]\nlisten = ["0.0.0.0:0"]\n' + login_config(tmp_path))
    assert checked(settings).returncode == 0


def checked(settings: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MEMWATCHD, "--config", settings, "--check-config", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(),
    )


def test_command_lines_are_not_read_where_strangers_could_see_them(tmp_path: Path) -> None:
    """Asked for, they are there behind a loopback address, and absent where the network reads without a login."""
    config = "[processes]\ncommand_lines = true\n"
    marked = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "--password=hunter2"])
    try:
        with running_daemon(tmp_path, config=config) as daemon:
            assert "time.sleep" in daemon.get("/api/v1/processes").text
        with running_daemon(tmp_path, "--listen", "0.0.0.0:0", "--insecure", config=config) as daemon:
            assert "time.sleep" not in daemon.get("/api/v1/processes").text
    finally:
        marked.kill()
        marked.wait()


def test_what_is_in_force_is_shown_without_secrets(tmp_path: Path) -> None:
    """--check-config names users and says that there is a token; it prints neither token nor hash."""
    settings = tmp_path / "memwatchd.toml"
    settings.write_text(login_config(tmp_path))

    done = checked(settings)

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
        ('[web.tls]\nkey_file = "/x"', "does nothing without cert_file"),
        ('[web.tls]\ncert_file = "/nonexistent/tls.pem"', "no such file or directory"),
        ('[web.tls]\ncert_file = "tls.pem"', "is not the path of a file"),
    ],
)
def test_a_login_that_cannot_work_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    """The message says which key and what would work, and repeats no secret."""
    settings = tmp_path / "memwatchd.toml"
    settings.write_text(text)

    done = checked(settings)

    assert done.returncode == 78
    assert words in done.stderr
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    """A secret with mode 0644 is used, and said to be public."""
    config = login_config(tmp_path)
    (tmp_path / "token").chmod(0o644)
    with running_daemon(tmp_path, config=config) as daemon:
        log = daemon.log.read_text()

    assert f"every user of this machine can read the secret in {tmp_path}/token" in log
