"""The token of a daemon or a neighbour goes to no other user who listens at its port of this machine."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from memwatch.core.linux.daemon_connection import find_service_uid, why_refused
from memwatch.core.linux.tcp_peer import ELSEWHERE, HIDDEN, REMOTE
from memwatch.library.daemon_client import Daemon
from support.client_process import memwatch
from support.daemon_process import running_daemon
from support.free_ports import free_port
from support.neighbours import event, machine, neighbours, serving, streams, tick_data, wait_for_state
from support.other_user import CAN_SWITCH, OTHER_UID, become_other, server_of_other
from support.waiting import MAX_WAIT_SECONDS, wait_until

TOKEN = "a-token-of-tests-1234"
ME = os.geteuid()


def test_command_sends_no_token_to_another_user() -> None:
    """The daemon is down. Without root both are one user, so that the token is sent: it is for that user."""
    port = free_port()
    with server_of_other(port) as sent:
        done = memwatch("--url", f"http://127.0.0.1:{port}", "devices", MEMWATCH_TOKEN=TOKEN)
        found = read_now(sent)
    assert done.returncode == 1
    assert (TOKEN.encode() in found) is not CAN_SWITCH
    if CAN_SWITCH:
        assert found == b""
        assert (
            f"the token is not sent: user {OTHER_UID} listens at 127.0.0.1:{port}, not root, you or" in done.stderr
        )
        assert f"set MEMWATCH_DAEMON_USER={OTHER_UID} if that is the daemon" in done.stderr


def test_command_sends_the_token_to_the_named_user() -> None:
    port = free_port()
    user = str(OTHER_UID if CAN_SWITCH else ME)
    with server_of_other(port) as sent:
        memwatch("--url", f"http://127.0.0.1:{port}", "devices", MEMWATCH_TOKEN=TOKEN, MEMWATCH_DAEMON_USER=user)
        assert TOKEN.encode() in read_now(sent)


def test_command_without_a_token_asks_as_before() -> None:
    """There is no secret in its request."""
    port = free_port()
    with server_of_other(port) as sent:
        memwatch("--url", f"http://127.0.0.1:{port}", "devices", MEMWATCH_TOKEN="")
        assert b"GET /api/v1/snapshot" in read_now(sent)


def test_command_reaches_a_daemon_of_its_user(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    config = f'[web.auth]\nbearer_token = "file:{tmp_path}/token"\n'
    with running_daemon(tmp_path, "--demo", "rtx4090", config=config) as daemon:
        url = f"http://127.0.0.1:{daemon.port}"
        done = memwatch("--url", url, "devices", "--json", MEMWATCH_TOKEN=TOKEN)
    assert (done.returncode, json.loads(done.stdout)[0]["id"]) == (0, "gpu0")


def test_library_sends_no_token_to_another_user(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MEMWATCH_TOKEN", TOKEN)
    port = free_port()
    with server_of_other(port) as sent:
        client = Daemon(f"http://127.0.0.1:{port}")
        assert client.get("/api/v1/snapshot") is None
        found = read_now(sent)
    assert (TOKEN.encode() in found) is not CAN_SWITCH
    assert caplog.text.count("the token is not sent") == int(CAN_SWITCH)
    assert client.is_silent


@pytest.mark.parametrize(
    ("owner", "user", "why"),
    [
        (0, "", ""),
        (ME, "", ""),
        (998, "", ""),
        (997, "", ""),
        (REMOTE, "", ""),
        (ELSEWHERE, "", ""),
        (1002, "", "user eve listens at {port}, not root, you or memwatchd; start the daemon"),
        (1003, "", "user 1003 listens at {port}, not root, you or memwatchd; start the daemon"),
        (HIDDEN, "", "is not visible in this container; use the socket file or https"),
        (HIDDEN, "eve", "is not visible in this container"),
        (1002, "eve", ""),
        (1002, "1002", ""),
        (0, "eve", "user root listens at {port}, not eve of MEMWATCH_DAEMON_USER"),
        (998, "eve", "user memwatchd listens at {port}, not eve of MEMWATCH_DAEMON_USER"),
    ],
)
def test_owners_who_get_a_token(tmp_path: Path, owner: int, user: str, why: str) -> None:
    """998 has the account of the package, 997 the folder of a unit with another User=."""
    accounts = tmp_path / "passwd"
    accounts.write_text("root:x:0:0::/:/bin/sh\nmemwatchd:x:998:998::/:/bin/sh\neve:x:1002:1002::/:/bin/sh\n")
    folder = tmp_path / "memwatchd"
    folder.mkdir()
    expected = why
    if CAN_SWITCH:
        os.chown(folder, 997, -1)
    elif owner == 997:
        owner = find_service_uid(str(folder / "memwatchd.sock")) or 0
    refusal = why_refused(owner, user, str(folder / "memwatchd.sock"), accounts)
    assert expected in refusal
    assert bool(expected) is bool(refusal)


def test_token_of_a_neighbour_is_not_sent_to_another_user(tmp_path: Path) -> None:
    """Its tunnel is down, and another user listens at the tunnel's port. State, log and doctor name the user."""
    name = "account-of-the-tunnel"
    token = tmp_path / "peer-token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with serving(streams(lambda: event(tick_data()), 0.1)) as url:
        config = neighbours({"one": url}, token=f"file:{token}", user=name)
        with running_daemon(tmp_path, config=config) as daemon:
            daemon.wait_for_log("Neighbour one: its token is not sent: user ")
            daemon.wait_for("/api/v1/machines/one", lambda found: "its token is not sent" in (found["text"] or ""))
            found = machine(daemon, "one")
            done = memwatch("--url", f"http://127.0.0.1:{daemon.port}", "doctor")
    assert f"not {name}; start the server, or set user = " in found["text"]
    assert found["state"] == "starting"
    assert "one: its token is not sent: user " in done.stdout


def test_token_of_a_neighbour_goes_to_the_first_user_again_after_a_restart(tmp_path: Path) -> None:
    token = tmp_path / "peer-token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    kept = {"version": 1, "owners": {f"[[neighbours]] {url}": ME + 60000}}
    (state / "key-owners.json").write_text(json.dumps(kept))
    with (
        socket.create_server(("127.0.0.1", port)) as listening,
        running_daemon(
            tmp_path, "--state-dir", str(state), config=neighbours({"one": url}, token=f"file:{token}")
        ) as daemon,
    ):
        accepted, _ = listening.accept()
        with accepted:
            daemon.wait_for_log(f"listens there now, before it was {ME + 60000}")
            assert accepted.recv(100) == b""


def test_neighbour_with_its_token_is_followed(tmp_path: Path) -> None:
    token = tmp_path / "peer-token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with serving(streams(lambda: event(tick_data()), 0.1)) as url:
        config = neighbours({"one": url}, token=f"file:{token}")
        with running_daemon(tmp_path, "--state-dir", str(state), config=config) as daemon:
            wait_for_state(daemon, "one", "up")
            wait_until((state / "key-owners.json").exists)
    assert json.loads((state / "key-owners.json").read_bytes())["owners"] == {f"[[neighbours]] {url}": ME}


def read_now(sent: int) -> bytes:
    """Return all that was sent so far, and close the pipe."""
    os.set_blocking(sent, False)
    try:
        return os.read(sent, 1 << 16)
    except BlockingIOError:
        return b""
    finally:
        os.close(sent)


def test_command_sends_no_token_to_another_user_at_a_socket_file(tmp_path: Path) -> None:
    """The file is in a folder of the tests, where that user could have put it. Without root both are one user."""
    path = f"{tmp_path}/memwatchd.sock"
    (source, sink), (ready, listens) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(path)
            become_other()
            listening.listen()
            listening.settimeout(MAX_WAIT_SECONDS)
            os.write(listens, b"1")
            accepted, _ = listening.accept()
            os.write(sink, accepted.recv(1 << 16))
        finally:
            os._exit(0)
    os.close(sink)
    assert os.read(ready, 1) == b"1"  # a socket file that is only bound refuses connections
    os.close(ready)
    os.close(listens)
    done = memwatch("--url", f"unix:{path}", "devices", MEMWATCH_TOKEN=TOKEN)
    os.waitpid(child, 0)
    found = os.read(source, 1 << 16)
    os.close(source)
    assert (TOKEN.encode() in found) is not CAN_SWITCH
    if CAN_SWITCH:
        assert found == b""
        assert f"the token is not sent: user {OTHER_UID} listens at {path}, not root, you or" in done.stderr
