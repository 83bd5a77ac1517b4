"""The prekill hook of systemd-oomd: calls over a socket that systemd passes, and the incident that follows."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from memwatchd.systemd.serve import MAX_CONNECTIONS, MAX_GROUPS, MAX_MESSAGE_BYTES, SOCKET_NAME, read_members
from support.daemon_process import RunningDaemon, descriptors, running_daemon
from support.hostile_names import find_controls_in_json
from support.incident_host import GROUPS, IncidentHost
from support.passed_socket import passed_socket
from support.waiting import MAX_WAIT_SECONDS

NOTIFY = "io.systemd.oom.Prekill.Notify"
CONFIG = "[processes]\ninterval = '1s'\n"


@contextmanager
def daemon_with_hook(tmp_path: Path, host: IncidentHost, name: str = SOCKET_NAME) -> Iterator[RunningDaemon]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "hook"))
        listener.listen()
        with (
            passed_socket(tmp_path, listener, name) as starter,
            running_daemon(tmp_path, *host.arguments, config=CONFIG, through=starter) as daemon,
        ):
            yield daemon


class Hooked(NamedTuple):
    """A daemon with the hook in `folder`, and its host."""

    daemon: RunningDaemon
    host: IncidentHost
    folder: Path


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hooked]:
    """Return one daemon for tests of single calls, each of another group."""
    folder = tmp_path_factory.mktemp("hooked")
    host = IncidentHost(folder / "host")
    with daemon_with_hook(folder, host) as daemon:
        yield Hooked(daemon, host, folder)


def connect(folder: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(MAX_WAIT_SECONDS)
    client.connect(str(folder / "hook"))
    return client


def call(client: socket.socket, method: str, **parameters: Any) -> Any:
    """Send a call as systemd-oomd does, and return the reply."""
    client.sendall(json.dumps({"method": method, "parameters": parameters}).encode() + b"\0")
    data = b""
    while not data.endswith(b"\0"):
        part = client.recv(4096)
        assert part, data
        data += part
    return json.loads(data[:-1])


def add_group(host: IncidentHost, place: str, pids: list[int], charged_bytes: int) -> None:
    """Add a control group with its members to the host's /sys."""
    folder = host.folder / "sys/fs/cgroup" / place.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    (folder / "memory.current").write_text(f"{charged_bytes}\n")


def test_kill_by_oomd_is_explained_without_the_journal(tmp_path: Path) -> None:
    """The incident names systemd-oomd, and the holders of memory in the group just before the kill."""
    host, place = IncidentHost(tmp_path / "host"), GROUPS[77]
    add_group(host, place, [77], 3 << 30)
    with daemon_with_hook(tmp_path, host) as daemon:
        daemon.wait_until_ok("processes")
        host.fill()
        with closing(connect(tmp_path)) as client:
            answer = call(client, NOTIFY, cgroup=place)
        host.end_process(77)
        found = daemon.wait_for("/api/v1/incidents", lambda found: any(one["kind"] == "kill" for one in found))
        log = daemon.read_log()

    killed = next(one for one in found if one["kind"] == "kill")
    assert answer == {"parameters": {}}
    assert killed["killer"]["kind"] == "systemd_oomd"
    evidence = killed["killer"]["evidence"]
    assert evidence.startswith(
        f"prekill message of systemd-oomd: about to kill {place} (3.0 GiB charged to it): vllm"
    )
    assert "(PID 77) holds" in evidence
    assert "gnome-shell" not in evidence
    assert f"systemd-oomd is about to kill {place}" in log


def test_slice_with_processes_of_several_units_is_described_by_its_members(tmp_path: Path) -> None:
    """The members of groups below are read, which no unit of a process tells."""
    host = IncidentHost(tmp_path / "host")
    add_group(host, GROUPS[78], [78], 1 << 30)
    add_group(host, "/user.slice/user-1000.slice/session-3.scope", [9999], 1 << 20)
    (host.folder / "sys/fs/cgroup/user.slice/cgroup.procs").write_text("")
    with daemon_with_hook(tmp_path, host) as daemon:
        daemon.wait_until_ok("processes")
        with closing(connect(tmp_path)) as client:
            call(client, NOTIFY, cgroup="/user.slice")
        daemon.wait_for_log("about to kill /user.slice: gnome-shell (PID 78) holds 307.2 MiB of System RAM")


def test_unknown_group_is_described_by_unit(hooked: Hooked) -> None:
    """A group that cannot be read, as in a container: processes are found by the unit in its path."""
    hooked.daemon.wait_until_ok("processes")
    with closing(connect(hooked.folder)) as client:
        call(client, NOTIFY, cgroup=GROUPS[78])
    hooked.daemon.wait_for_log(f"about to kill {GROUPS[78]}: gnome-shell (PID 78)")


def test_control_characters_of_a_group_are_escaped(tmp_path: Path) -> None:
    """A user names the control groups of own sessions."""
    with daemon_with_hook(tmp_path, IncidentHost(tmp_path / "host")) as daemon:
        daemon.wait_until_ok("processes")
        with closing(connect(tmp_path)) as client:
            call(client, NOTIFY, cgroup="/user.slice/\x1b[2J\u202e.scope")
        (found,) = daemon.wait_for("/api/v1/incidents", lambda found: found)

    assert "about to kill /user.slice/\\u001b[2J\\u202e.scope" in found["killer"]["evidence"]
    assert find_controls_in_json(json.dumps(found).encode()) == []


@pytest.mark.parametrize(
    ("method", "parameters", "error"),
    [
        ("io.systemd.oom.Prekill.Stop", {}, "MethodNotFound"),
        (NOTIFY, {"cgroup": 7}, "InvalidParameter"),
        (NOTIFY, {}, "InvalidParameter"),
        (
            "org.varlink.service.GetInterfaceDescription",
            {"interface": "a.b"},
            "InterfaceNotFound",
        ),
    ],
)
def test_calls_that_it_does_not_serve_are_errors(
    hooked: Hooked, method: str, parameters: dict[str, Any], error: str
) -> None:
    """systemd-oomd logs the error and kills all the same."""
    with closing(connect(hooked.folder)) as client:
        assert call(client, method, **parameters)["error"] == f"org.varlink.service.{error}"


def test_interface_is_described(hooked: Hooked) -> None:
    """`varlinkctl introspect` lists the method."""
    with closing(connect(hooked.folder)) as client:
        info = call(client, "org.varlink.service.GetInfo")["parameters"]
        described = call(client, "org.varlink.service.GetInterfaceDescription", interface="io.systemd.oom.Prekill")

    assert "io.systemd.oom.Prekill" in info["interfaces"]
    assert "method Notify(cgroup: string) -> ()" in described["parameters"]["description"]


def test_path_that_leaves_the_hierarchy_is_not_read(hooked: Hooked) -> None:
    """No file outside /sys/fs/cgroup is opened for a path with dots."""
    (hooked.host.folder / "sys/cgroup.procs").write_text("77\n")
    with closing(connect(hooked.folder)) as client:
        call(client, NOTIFY, cgroup="/../../../sys")
        hooked.daemon.wait_for_log("about to kill /../../../sys: no listed process is in it")


def test_group_of_a_user_costs_as_much_however_large_it_is(hooked: Hooked) -> None:
    """A delegated group may have any number of groups below it, with names of any length."""
    host = hooked.host
    add_group(host, "/user.slice", [], 5 << 30)
    for number in range(2 * MAX_GROUPS):
        add_group(host, f"/user.slice/{number}", [70_000 + number], 1)
    with closing(connect(hooked.folder)) as client:
        assert call(client, NOTIFY, cgroup="/user.slice") == {"parameters": {}}
        assert call(client, NOTIFY, cgroup="/" + "a" * 4000) == {"parameters": {}}
        assert call(client, NOTIFY, cgroup="/user.slice/\0/a") == {"parameters": {}}
        hooked.daemon.wait_for_log("about to kill /aaa")
    members = read_members(host.folder / "sys/fs/cgroup/user.slice")
    assert (len(members.pids), members.is_whole) == (MAX_GROUPS - 1, False)


def test_garbage_and_silent_clients_stay_bounded(tmp_path: Path) -> None:
    """Bytes that are no call are logged, and the connection is closed; at most sixteen connections are open."""
    with daemon_with_hook(tmp_path, IncidentHost(tmp_path / "host")) as daemon:
        before = descriptors(daemon.pid)
        for data in (b"{\0", b'["a"]\0', b"x" * (MAX_MESSAGE_BYTES + 4096)):
            with closing(connect(tmp_path)) as client:
                client.sendall(data)
                assert client.recv(100) == b""
        silent = [connect(tmp_path) for _ in range(3 * MAX_CONNECTIONS)]
        daemon.wait_for_log(f"a call of process {os.getpid()} failed: it is not JSON")
        refused = sum(not one.recv(1) for one in silent[MAX_CONNECTIONS:])

        assert refused == 2 * MAX_CONNECTIONS
        assert descriptors(daemon.pid) <= before + MAX_CONNECTIONS
        for one in silent:
            one.close()


def test_socket_with_another_name_is_closed_and_logged(tmp_path: Path) -> None:
    """FileDescriptorName= decides, as a unit may pass several sockets."""
    with daemon_with_hook(tmp_path, IncidentHost(tmp_path / "host"), "web") as daemon:
        daemon.wait_for_log("socket web of systemd is not used; its FileDescriptorName= must be oomd-prekill")
