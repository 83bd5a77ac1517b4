"""The API key of a model server goes to the user whom it is for: real connections within this machine."""

from __future__ import annotations

import json
import os
import pwd
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.collectors.engines import Collector, EngineAddress
from memwatch.core.engines.records import NOT_SENT, Address, Engine
from memwatch.core.http import GetError
from memwatch.core.linux.key_owner import MAX_OWNERS, KeyOwner, KeyUse, KnownOwners
from memwatch.core.linux.process_files import Passwd
from memwatch.core.linux.tcp_peer import Peer, TcpEnd, find_peer, is_on_this_machine
from memwatch.core.model import Absent
from memwatch.reporting.answers import Verdict
from memwatch.reporting.doctor.checks import run_checks
from memwatchd.state_dir import OWNERS_FILE, open_key_owners, read_owners
from support import engine_texts as texts
from support.engine_host import EngineHost
from support.engine_servers import engine_site
from support.open_things import close_at_end
from support.other_user import CAN_SWITCH, OTHER_UID, server_of_other
from support.sample_snapshots import calm_workstation
from support.waiting import wait_until

KEY = "s3cret"
ME = os.geteuid()
MY_NAME = pwd.getpwuid(ME).pw_name
VLLM = ("vllm", "serve", "m")
OTHER = next(name for name in ("eve", "mallory") if name != MY_NAME)


@pytest.fixture
def host(tmp_path: Path) -> EngineHost:
    found = EngineHost(tmp_path)
    (tmp_path / "etc/passwd").write_text(f"{MY_NAME}:x:{ME}:1::/:/bin/sh\n")
    return found


def collector_of(host: EngineHost, port: int, user: str = "", name: str = "127.0.0.1") -> Collector:
    """Return a collector that has no pause after a failure: each round is a minute later."""
    address = EngineAddress("vllm", "chat", Address(name, port, token=KEY, user=user))
    clock = iter(range(0, 1_000_000, 60))
    return close_at_end(Collector(host.roots, True, (address,), None, host.net, lambda: float(next(clock))))


def ask(collector: Collector) -> Engine:
    (engine,) = collector.collect().engines
    return engine


@contextmanager
def connection(listening: socket.socket) -> Iterator[socket.socket]:
    with socket.create_connection(listening.getsockname()[:2]) as connected:
        yield connected


USE = KeyUse("Engine chat", "http://127.0.0.1:8000", "API key", "[[engines]]")


def owner_of(peer: Peer, user: str = "", known: KnownOwners | None = None) -> KeyOwner:
    return KeyOwner(USE, user, Passwd(Path("/nowhere")), known or KnownOwners(), lambda *_: peer)


@pytest.mark.parametrize("user", ["", MY_NAME, str(ME)])
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_key_goes_to_the_user_it_is_for(host: EngineHost, user: str, name: str) -> None:
    with engine_site(texts.vllm()) as site:
        engine = ask(collector_of(host, site.port, user, name))
    assert engine.requests_running == 3
    assert {headers["Authorization"] for headers in site.headers} == {f"Bearer {KEY}"}


def test_key_of_another_user_is_not_sent(host: EngineHost, caplog: pytest.LogCaptureFixture) -> None:
    """The server is down, and another user listens. Card, log and doctor have the remedy."""
    with engine_site(texts.vllm()) as site:
        collector = collector_of(host, site.port, OTHER)
        engine = ask(collector)
        ask(collector)
        url = f"http://127.0.0.1:{site.port}"
    remedy = f'start the server, or set user = "{MY_NAME}" under [[engines]]'
    assert site.requests == []
    assert engine.notes == (f"{url}: {NOT_SENT}: user {MY_NAME} listens there, not {OTHER}; {remedy}.",)
    assert engine.requests_running is Absent.NOT_AVAILABLE
    assert caplog.text.count(f"Engine chat: {NOT_SENT}: user {MY_NAME} listens there, not {OTHER}") == 1
    checks = run_checks(replace(calm_workstation(), engines=(engine,)))
    (check,) = [one for one in checks if one.id == "engines.0"]
    assert (check.verdict, check.remedy) == (Verdict.PROBLEM, remedy)


def test_process_that_is_found_at_the_address_gets_no_key_of_another_user(host: EngineHost) -> None:
    """Any user may call a process `vllm serve`, and listen at the port of a server that is down."""
    with engine_site(texts.vllm()) as site:
        host.add(500, VLLM, uid=ME)
        host.listen(500, site.port, uid=ME)
        engine = ask(collector_of(host, site.port, OTHER))
    assert (engine.pid, site.requests) == (500, [])
    assert NOT_SENT in engine.notes[0]


def test_user_who_takes_the_port_over_gets_nothing(host: EngineHost, caplog: pytest.LogCaptureFixture) -> None:
    """Without root both are one user, so that the key is sent: the test then shows that it is for that user."""
    with engine_site(texts.vllm()) as site:
        port = site.port
        collector = collector_of(host, port)
        assert ask(collector).requests_running == 3
    assert "connection refused" in ask(collector).notes[0]
    with server_of_other(port) as received:
        engine = ask(collector)
    sent = os.read(received, 1 << 16)
    os.close(received)
    if CAN_SWITCH:
        before = f"user {OTHER_UID} listens there now, before it was {MY_NAME}"
        assert before in engine.notes[0]
        assert sent == b""
    else:
        assert KEY.encode() in sent
    assert caplog.text.count(NOT_SENT) == int(CAN_SWITCH)


def test_server_that_is_back_gets_its_key_again(host: EngineHost, caplog: pytest.LogCaptureFixture) -> None:
    peers = [Peer(998, True, True), Peer(1002, True, True), Peer(998, True, True)]
    owner = KeyOwner(USE, "", Passwd(host.root / "etc/passwd"), KnownOwners(), lambda *_: peers.pop(0))
    with socket.create_server(("127.0.0.1", 0)) as listening, connection(listening) as connected:
        owner.admit(connected, 0.0)
        with pytest.raises(GetError, match="user 1002 listens there now, before it was 998"):
            owner.admit(connected, 0.0)
        with caplog.at_level("INFO"):
            owner.admit(connected, 0.0)
    assert caplog.messages[-1] == "Engine chat: its API key is sent again"


def test_key_waits_until_a_process_accepts_the_connection() -> None:
    """Until then the kernel has no user of the other end. Here none ever does."""
    pauses: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as listening, connection(listening) as connected:
        ends = TcpEnd(*connected.getpeername()), TcpEnd(*connected.getsockname())
        assert find_peer(*ends) == Peer(None, True, False)
        owner = KeyOwner(USE, "", Passwd(Path("/nowhere")), KnownOwners(), pause=pauses.append)
        with pytest.raises(TimeoutError):
            owner.admit(connected, time.monotonic() - 1)
        accepted, _ = listening.accept()
        with accepted:
            assert find_peer(*ends) == Peer(ME, True, True)
            owner.admit(connected, time.monotonic() - 1)
    assert pauses == []


def test_connection_that_was_reset_makes_no_one_the_owner() -> None:
    """It has no row in the table, as one that leads into a container."""
    with socket.create_server(("127.0.0.1", 0)) as listening, connection(listening) as connected:
        accepted, _ = listening.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        def find_after_the_reset(theirs: TcpEnd, ours: TcpEnd) -> Peer:
            accepted.close()
            return find_peer(theirs, ours)

        owner = KeyOwner(USE, "", Passwd(Path("/nowhere")), KnownOwners(), find_after_the_reset)
        with pytest.raises(ConnectionResetError):
            owner.admit(connected, 0.0)
        with connection(listening) as connected, listening.accept()[0]:
            owner.admit(connected, 0.0)


@pytest.mark.parametrize(
    ("peer", "user", "why"),
    [
        (Peer(), "", ""),
        (Peer(), "vllm", "so that its user is not known; remove user"),
        (Peer(None, True, True), "", "is not visible in this container"),
        (Peer(None, True, True), "vllm", "is not visible in this container"),
        (Peer(0, True, True), "0", ""),
        (Peer(0, True, True), "vllm", "user 0 listens there, not vllm"),
    ],
    ids=["container", "container of a user", "hidden", "hidden, of a user", "right", "wrong"],
)
def test_owner_who_is_not_known(peer: Peer, user: str, why: str) -> None:
    """Only root can redirect a port into the network of a container."""
    with socket.create_server(("127.0.0.1", 0)) as listening, connection(listening) as connected:
        if not why:
            owner_of(peer, user).admit(connected, 0.0)
            return
        with pytest.raises(GetError, match=why):
            owner_of(peer, user).admit(connected, 0.0)


def test_owner_is_not_forgotten_at_a_restart(tmp_path: Path) -> None:
    """The server is down while memwatchd starts again, and another user listens there."""
    tmp_path.chmod(0o700)
    with socket.create_server(("127.0.0.1", 0)) as listening, connection(listening) as connected:
        owner_of(Peer(998, True, True), known=open_key_owners(tmp_path)).admit(connected, 0.0)
        wait_until((tmp_path / OWNERS_FILE).exists)
        with pytest.raises(GetError, match="user 1002 listens there now, before it was 998"):
            owner_of(Peer(1002, True, True), known=open_key_owners(tmp_path)).admit(connected, 0.0)
        owner_of(Peer(1002, True, True), "1002", open_key_owners(tmp_path)).admit(connected, 0.0)
    assert json.loads((tmp_path / OWNERS_FILE).read_bytes())["owners"] == {"[[engines]] http://127.0.0.1:8000": 998}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is damaged"),
        (b'{"version":1,"owners":{"a":"root"}}', "it is damaged"),
        (b'{"version":1,"owners":[1,2', "it is damaged"),
        (b'{"version":1,"owners":{"a":0,"b":-2}}', "it is damaged"),
        (b'{"version":1,"owners":{"a":0,"b":4294967295}}', "it is damaged"),
        (b'{"version":1,"owners":{"a":0,"b":1e30}}', "it is damaged"),
        (b'{"version":2,"owners":{}}', "it is of another version"),
        (json.dumps({"version": 1, "owners": {str(one): one for one in range(999)}}).encode(), "another version"),
    ],
)
def test_file_of_owners_that_cannot_be_used_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, why: str
) -> None:
    """memwatchd starts, and writes it again at the next key."""
    tmp_path.chmod(0o700)
    (tmp_path / OWNERS_FILE).write_bytes(content)
    known = open_key_owners(tmp_path)
    assert why in caplog.text
    assert known.first(USE, 7) == 7
    wait_until(lambda: read_owners(tmp_path) == {USE.id: 7})


def test_file_of_owners_that_others_can_write_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / OWNERS_FILE).write_bytes(b'{"version":1,"owners":{"a":1}}')
    (tmp_path / OWNERS_FILE).chmod(0o666)
    assert read_owners(tmp_path) == {}
    assert "is writable by one" in caplog.text


def test_number_of_owners_is_limited() -> None:
    """The oldest are dropped."""
    known = KnownOwners()
    uses = [KeyUse("", f"http://127.0.0.1:{port}", "token", "[[neighbours]]") for port in range(MAX_OWNERS + 1)]
    for use in uses:
        known.first(use, 1)
    assert [known.first(use, 2) for use in (uses[0], uses[-1])] == [2, 1]


@pytest.mark.parametrize(
    ("ours", "theirs", "is_here"),
    [
        ("127.0.0.1", "127.0.1.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("192.0.2.7", "192.0.2.7", True),
        ("192.0.2.7", "192.0.2.8", False),
        ("2001:db8::7", "2001:db8::8", False),
    ],
)
def test_connection_within_this_machine(ours: str, theirs: str, is_here: bool) -> None:
    assert is_on_this_machine(TcpEnd(ours, 40000), TcpEnd(theirs, 8000)) is is_here
