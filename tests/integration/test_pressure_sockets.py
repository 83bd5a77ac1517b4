"""The sockets for $MEMORY_PRESSURE_WATCH: clients of a running daemon whose machine fills."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from memwatchd.systemd.pressure_sockets import KEEP_SECONDS, MAX_KEPT_AT_ONCE, MAX_RECEIVED_BYTES
from support.daemon_process import MEMWATCHD, RunningDaemon, run_program, running_daemon
from support.mutable_machine import MutableMachine
from support.other_user import CAN_SWITCH, connect_as
from support.passed_socket import passed_socket
from support.waiting import MAX_WAIT_SECONDS, wait_readable, wait_until

CONFIG = "[systemd]\npressure_sockets = true\nsocket_dir = '{}'\n[pressure]\nclear_after = '0s'\n"


@contextmanager
def daemon_with_sockets(tmp_path: Path, more: str = "") -> Iterator[tuple[RunningDaemon, MutableMachine]]:
    machine = MutableMachine.of("workstation", tmp_path / "machine")
    machine.use(0.3)
    (machine.folder / "root/etc").mkdir(parents=True, exist_ok=True)
    (machine.folder / "root/etc/subuid").write_text("54321:100000:65536\n")
    (tmp_path / "run").mkdir()
    config = CONFIG.format(tmp_path / "run") + more
    with running_daemon(tmp_path, *machine.arguments, "--interval=100ms", config=config) as daemon:
        yield daemon, machine


def connect(path: Path, request: bytes = b"") -> socket.socket:
    """Connect as the protocol says: connect, then write the request."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(path))
    client.sendall(request)
    return client


def is_notified(client: socket.socket, seconds: float = MAX_WAIT_SECONDS) -> bytes:
    """Return what arrives in this time; empty if nothing does."""
    return client.recv(100) if wait_readable(client, seconds) else b""


def wait_for_stored(manager: socket.socket, name: str, messages: list[str] | None = None) -> socket.socket:
    """Return the socket that memwatchd stores under this name. `messages` gets all texts before it."""
    manager.settimeout(MAX_WAIT_SECONDS)
    while True:
        text, descriptors, *_ = socket.recv_fds(manager, 4096, 1)
        if messages is not None:
            messages.append(text.decode())
        if text.decode() == f"FDSTORE=1\nFDNAME={name}":
            return socket.socket(fileno=descriptors[0])
        for one in descriptors:
            os.close(one)


def test_client_of_a_named_socket_is_notified_when_its_pool_fills(tmp_path: Path) -> None:
    """Of the levels from its own on, and not before. What it writes does not matter."""
    with daemon_with_sockets(tmp_path) as (_, machine), ExitStack() as opened:
        high = opened.enter_context(
            closing(connect(tmp_path / "run/pressure-ram-high.sock", b"some 200000 2000000\0"))
        )
        critical = opened.enter_context(closing(connect(tmp_path / "run/pressure-ram-critical.sock")))
        before = is_notified(high, 1.0)
        machine.use(0.9)

        assert before == b""
        assert is_notified(high) == b"ram high\n"
        assert is_notified(critical, 0.5) == b""
        machine.use(0.98)
        assert is_notified(critical) == b"ram critical\n"
        assert is_notified(high) == b"ram critical\n"


def test_client_of_the_common_socket_chooses_target_and_level(tmp_path: Path) -> None:
    """By what it writes, also in two parts; without a request it is notified of System RAM at level high."""
    with daemon_with_sockets(tmp_path) as (_, machine), ExitStack() as opened:
        medium = opened.enter_context(closing(connect(tmp_path / "run/pressure.sock", b"ram med")))
        medium.sendall(b"ium")
        silent = opened.enter_context(closing(connect(tmp_path / "run/pressure.sock")))
        machine.use(0.7)

        assert is_notified(medium) == b"ram medium\n"
        assert is_notified(silent, 0.5) == b""
        machine.use(0.9)
        assert is_notified(silent) == b"ram high\n"


def test_malformed_request_is_logged_and_the_connection_stays_open(tmp_path: Path) -> None:
    """The log names the process and what to write, or the targets. libsystemd spins at an end of file."""
    with daemon_with_sockets(tmp_path) as (daemon, machine), ExitStack() as opened:
        wrong = opened.enter_context(closing(connect(tmp_path / "run/pressure.sock", b"please\n")))
        other = opened.enter_context(closing(connect(tmp_path / "run/pressure.sock", b"gpu7 high\n")))

        daemon.wait_for_log(f"the request of process {os.getpid()} is ignored: it is not TARGET LEVEL")
        daemon.wait_for_log("waits for gpu7, which is not a target now; targets are ram")
        machine.use(0.9)
        assert is_notified(wrong) == b"ram high\n"
        assert not wait_readable(other, 0.2)


def test_flood_is_closed(tmp_path: Path) -> None:
    """A client has no reason to write more than its request."""
    with daemon_with_sockets(tmp_path), closing(connect(tmp_path / "run/pressure-ram-high.sock")) as flood:
        flood.settimeout(MAX_WAIT_SECONDS)
        with pytest.raises(OSError, match=r"Broken pipe|Connection reset"):
            flood.sendall(b"x" * MAX_RECEIVED_BYTES * 1000)


def test_account_has_an_eighth_of_the_clients_and_root_is_served(tmp_path: Path) -> None:
    """Also by its subordinate ids. Another user and root are notified."""
    config = "[budgets]\npressure_clients = 32\n"
    with daemon_with_sockets(tmp_path, config) as (daemon, machine), ExitStack() as opened:
        path = tmp_path / "run/pressure-ram-high.sock"
        uids = [54321, *range(100_000, 100_007)]
        many = [opened.enter_context(connect_as(uid, path)) for uid in uids]
        other, root = (opened.enter_context(connect_as(uid, path)) for uid in (54322, 0))
        if CAN_SWITCH:
            assert [one.recv(100) for one in many[4:]] == [b""] * 4
            daemon.wait_for_log("uid 54321 has 4 of 32 clients of the pressure sockets, its share; more are closed")
        machine.use(0.9)

        assert [is_notified(one) for one in (many[0], other, root)] == [b"ram high\n"] * 3
        assert daemon.get("/healthz").status == 200
        if CAN_SWITCH:
            many[0].close()
            # memwatchd may accept another connection before it sees the end of this one, and close that.
            wait_until(lambda: is_notified(opened.enter_context(connect_as(54321, path))) == b"ram high\n")


def test_root_is_never_refused_and_its_clients_stay_bounded(tmp_path: Path) -> None:
    """Beyond the limit root's own oldest connection is closed. A client of another user stays."""
    with daemon_with_sockets(tmp_path, "[budgets]\npressure_clients = 8\n") as (_, machine), ExitStack() as opened:
        path = tmp_path / "run/pressure-ram-high.sock"
        other = opened.enter_context(connect_as(54322, path))
        of_root = [opened.enter_context(connect_as(0, path)) for _ in range(11)]
        machine.use(0.9)
        if CAN_SWITCH:
            assert [one.recv(100) for one in of_root[:3]] == [b""] * 3
            assert [is_notified(one) for one in (other, *of_root[3:])] == [b"ram high\n"] * 9
        else:  # the user of the tests has one of eight
            assert is_notified(other) == b"ram high\n"


def test_unread_notifications_are_not_queued(tmp_path: Path) -> None:
    """A client that never reads costs memwatchd nothing: its socket's buffer is full, and others are notified."""
    with daemon_with_sockets(tmp_path) as (daemon, machine), ExitStack() as opened:
        path = tmp_path / "run/pressure-ram-high.sock"
        unread, reader = (opened.enter_context(closing(connect(path))) for _ in range(2))
        for _ in range(3):
            machine.use(0.9)
            assert is_notified(reader) == b"ram high\n"
            machine.use(0.3)
            daemon.wait_for("/api/v1/pressure", lambda found: found[0]["level"] == "low")

        assert unread.recv(1000, socket.MSG_DONTWAIT) == b"ram high\n" * 3


def test_service_manager_keeps_connections_over_a_restart(tmp_path: Path) -> None:
    """Each connection is stored with its subscription, and the next process goes on with it."""
    machine = MutableMachine.of("workstation", tmp_path / "machine")
    machine.use(0.3)
    (tmp_path / "run").mkdir()
    config = CONFIG.format(tmp_path / "run")
    arguments = [*machine.arguments, "--interval=100ms"]
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "FDSTORE": "512"}
    with ExitStack() as opened:
        manager = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        manager.bind(environ["NOTIFY_SOCKET"])
        with running_daemon(tmp_path, *arguments, config=config, environ=environ) as daemon:
            client = opened.enter_context(closing(connect(tmp_path / "run/pressure.sock", b"ram medium")))
            name = "pressure 1 ram medium common"
            stored = opened.enter_context(wait_for_stored(manager, name))
            daemon.terminate()
        is_open = not wait_readable(client, 0.5)
        starter = opened.enter_context(passed_socket(tmp_path, stored, name))
        with running_daemon(tmp_path, *arguments, config=config, through=starter):
            machine.use(0.7)
            notified = is_notified(client)

    assert is_open
    assert notified == b"ram medium\n"


def test_flood_of_connections_leaves_the_service_managers_socket_free(tmp_path: Path) -> None:
    """The watchdog's messages take the same way. A connection that ends at once is not kept."""
    (tmp_path / "run").mkdir()
    config = CONFIG.format(tmp_path / "run")
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "FDSTORE": "512"}
    messages: list[str] = []
    with ExitStack() as opened:
        manager = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        manager.bind(environ["NOTIFY_SOCKET"])
        machine = MutableMachine.of("workstation", tmp_path / "machine")
        opened.enter_context(running_daemon(tmp_path, *machine.arguments, config=config, environ=environ))
        begin = time.monotonic()
        for _ in range(500):
            connect(tmp_path / "run/pressure.sock", b"ram medium").close()
        last = opened.enter_context(closing(connect(tmp_path / "run/pressure.sock", b"ram high")))
        opened.enter_context(wait_for_stored(manager, "pressure 501 ram high common", messages))
        turns = (time.monotonic() - begin) / KEEP_SECONDS + 1
        assert last.fileno() >= 0

    assert len([text for text in messages if "FDSTORE=1" in text]) <= MAX_KEPT_AT_ONCE * turns


def test_sockets_are_for_all_users_and_are_removed_at_the_end(tmp_path: Path) -> None:
    """Three levels for each pool; a clean end leaves no file behind."""
    with daemon_with_sockets(tmp_path) as (daemon, _):
        folder = tmp_path / "run"
        names = {path.name for path in folder.iterdir()}
        modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        pools = {pool["id"] for pool in daemon.snapshot()["pools"]}
        client = connect(folder / "pressure-ram-high.sock")
        daemon.terminate()
        left = list(folder.iterdir())
        client.settimeout(MAX_WAIT_SECONDS)

        assert names == {"pressure.sock"} | {
            f"pressure-{pool}-{level}.sock" for pool in pools for level in ("medium", "high", "critical")
        }
        assert modes == {0o666}
        assert left == []
        assert client.recv(10) == b""
        client.close()


def test_without_the_setting_there_are_no_sockets(tmp_path: Path) -> None:
    """Also in the service, whose folder would be writable."""
    (tmp_path / "run").mkdir()
    config = f"[systemd]\nsocket_dir = '{tmp_path}/run'\n"
    with running_daemon(tmp_path, config=config):
        assert list((tmp_path / "run").iterdir()) == []


def test_simulated_machine_has_no_sockets(tmp_path: Path) -> None:
    """Programs of this machine must not react to levels of a demo."""
    (tmp_path / "run").mkdir()
    with running_daemon(tmp_path, "--demo=rtx4090", config=CONFIG.format(tmp_path / "run")):
        assert list((tmp_path / "run").iterdir()) == []


def test_unusable_folder_is_logged_and_the_daemon_serves(tmp_path: Path) -> None:
    """The log names the folder, the reason and the setting."""
    config = f"[systemd]\npressure_sockets = true\nsocket_dir = '{tmp_path}/missing'\n"
    with running_daemon(tmp_path, config=config) as daemon:
        daemon.wait_for_log(f"no pressure sockets in {tmp_path}/missing: No such file or directory; set socket_dir")
        assert daemon.get("/healthz").status == 200


def test_runtime_folder_of_the_unit_is_the_default_folder(tmp_path: Path) -> None:
    """RuntimeDirectory= of the unit, if it is writable."""
    (tmp_path / "run").mkdir()
    settings = tmp_path / "empty.toml"
    settings.write_text("")
    done = run_program(MEMWATCHD, "--config", str(settings), "--check-config", RUNTIME_DIRECTORY=f"{tmp_path}/run")

    assert f'systemd.socket_dir = "{tmp_path}/run"' in done.stdout
