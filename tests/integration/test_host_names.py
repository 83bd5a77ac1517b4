"""Names in the Host header: a login or a client certificate replaces the allow-list, for programs only."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.certificates import authority, signed_by, tls_config
from support.daemon_process import RunningDaemon, get, running_daemon
from support.login_settings import BEARER, PASSWORD, TOKEN, basic, login_config

FLEET = {"Host": "gpu7.fleet.example:6360"}
UNKNOWN = "is not a name of this machine"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Run a daemon with a login that knows no name of the fleet."""
    folder = tmp_path_factory.mktemp("names")
    with running_daemon(folder, config=login_config(folder)) as running:
        yield running


@pytest.mark.parametrize(
    "login", [BEARER, basic("ada", PASSWORD), basic("token", TOKEN)], ids=["token", "password", "user token"]
)
def test_right_login_is_answered_under_any_name(daemon: RunningDaemon, login: Mapping[str, str]) -> None:
    """A scrape by name and a change by a program."""
    for path in ("/metrics", "/api/v1/snapshot", "/", "/healthz"):
        assert daemon.get(path, **FLEET, **login).status == 200, path
    assert get(daemon.port, "/api/v1/release?seconds=1", {**FLEET, **login}, "POST").status == 200


@pytest.mark.parametrize(
    "login",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {TOKEN}x"},
        basic("token", TOKEN[:-1]),
        basic("", ""),
    ],
    ids=["none", "empty", "no token", "wrong token", "wrong password", "empty user"],
)
def test_other_clients_get_400_without_a_challenge(daemon: RunningDaemon, login: Mapping[str, str]) -> None:
    """Without a challenge no browser asks for a password under the name of another site."""
    answer = daemon.get("/metrics", **FLEET, **login)

    assert (answer.status, UNKNOWN in answer.json["detail"]) == (400, True)
    assert "www-authenticate" not in answer.headers


def test_no_path_is_open_under_a_foreign_name(daemon: RunningDaemon) -> None:
    """Health checks are open to clients without a login, under the machine's names."""
    for path in ("/healthz", "/readyz", "/", "/static/app.css", "/nothing"):
        assert [get(daemon.port, path, FLEET, method).status for method in ("GET", "HEAD", "POST")] == [400] * 3, (
            path
        )


@pytest.mark.parametrize(
    "header",
    [
        ("Origin", "http://gpu7.fleet.example:6360"),
        ("Referer", "http://gpu7.fleet.example:6360/"),
        ("Cookie", "a=b"),
        ("Sec-Fetch-Site", "same-origin"),
        ("Sec-Fetch-Mode", "cors"),
        ("X-Forwarded-For", "192.0.2.1"),
        ("Forwarded", "for=192.0.2.1"),
        ("Via", "1.1 proxy"),
    ],
    ids=lambda header: header[0],
)
def test_login_in_requests_of_browsers_and_proxies_does_not_replace_a_name(
    daemon: RunningDaemon, header: tuple[str, str]
) -> None:
    """A proxy may add the same login to every request, and a browser one that it remembers."""
    marked = {**BEARER, header[0]: header[1]}

    assert daemon.get("/metrics", **FLEET, **marked).status == 400
    assert daemon.get("/metrics", **marked).status == 200


def test_guesses_under_a_foreign_name_are_limited(tmp_path: Path) -> None:
    """A page that rebinds its name can try passwords, as any client can; after ten they are not checked."""
    with running_daemon(tmp_path, config=login_config(tmp_path)) as daemon:
        wrong = [daemon.get("/", **FLEET, **basic("ada", f"wrong {number}")) for number in range(12)]
        right = daemon.get("/", **FLEET, **basic("ada", PASSWORD))
        token = daemon.get("/", **FLEET, **BEARER)

    assert [answer.status for answer in wrong] == [400] * 10 + [429] * 2
    assert right.status == 429
    assert "www-authenticate" not in right.headers
    assert token.status == 200


def test_socket_file_and_daemon_without_a_login_keep_the_check(tmp_path: Path) -> None:
    """A client that need not log in proves nothing by credentials."""
    with running_daemon(tmp_path) as daemon:
        assert daemon.get("/metrics", **FLEET, **BEARER).status == 400
        assert daemon.get("/metrics", Host="localhost").status == 200


def test_client_certificate_is_answered_under_any_name(tmp_path: Path) -> None:
    """Browsers send certificates unasked: a request of theirs needs a known name."""
    ca = authority(tmp_path)
    known = ca.context_of_client(signed_by(ca, "client"))
    with running_daemon(tmp_path, config=tls_config(signed_by(ca), ca), tls=known) as daemon:
        assert daemon.get("/metrics", **FLEET).status == 200
        assert daemon.get("/metrics", **FLEET, **{"Sec-Fetch-Site": "none"}).status == 400
        assert daemon.get("/metrics", **{"Sec-Fetch-Site": "none"}).status == 200


def test_names_in_the_certificate_are_known_and_change_with_it(tmp_path: Path) -> None:
    """Without a login and without `hosts`."""
    ca = authority(tmp_path)
    server = signed_by(ca, names="DNS:localhost,IP:127.0.0.1,DNS:gpu7.fleet.example,DNS:*.lab.example")
    with running_daemon(tmp_path, config=tls_config(server), tls=ca.context_of_client()) as daemon:

        def statuses() -> list[int]:
            names = ("gpu7.fleet.example:6360", "a.lab.example", "a.b.lab.example", "evil.example")
            return [daemon.get("/metrics", Host=name).status for name in names]

        before = statuses()
        renewed = signed_by(ca, "renewed")
        server.cert.write_bytes(renewed.cert.read_bytes())
        server.key.write_bytes(renewed.key.read_bytes())
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_log("settings reloaded")
        after = statuses()

    assert before == [200, 200, 400, 400]
    assert after == [400] * 4


def test_domain_in_hosts_allows_reading_but_not_changes_of_its_other_sites(tmp_path: Path) -> None:
    config = '[web]\nhosts = [".fleet.example"]\n'
    with running_daemon(tmp_path, config=config) as daemon:
        read = [
            daemon.get("/", Host=host).status
            for host in ("gpu7.fleet.example", "fleet.example", "fleet.example.evil")
        ]
        change = "/api/v1/release?seconds=1"
        own = get(daemon.port, change, {**FLEET, "Origin": f"http://{FLEET['Host']}"}, "POST")
        other = get(daemon.port, change, {**FLEET, "Origin": "http://blog.fleet.example"}, "POST")

    assert read == [200, 200, 400]
    assert own.status == 200
    assert other.status == 403
    assert "cross-site" in other.json["detail"]


def test_names_of_the_machine_are_known_without_settings(tmp_path: Path) -> None:
    """Its line in /etc/hosts has its fully qualified name."""
    import socket

    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/hosts").write_text(
        f"192.0.2.7 box.fleet.example {socket.gethostname()}\n192.0.2.8 other.example\n"
    )
    with running_daemon(tmp_path, "--rootfs", str(root)) as daemon:
        names = ("box.fleet.example", f"{socket.gethostname()}.local", "other.example")
        assert [daemon.get("/metrics", Host=name).status for name in names] == [200, 200, 400]
