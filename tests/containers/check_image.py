"""The image of deploy/Dockerfile, run by Podman with the options of docker-compose.yml: `make test-image`."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from containers.images import OURS, SERVICES
from containers.podman import Podman, execute, ulimits
from support.daemon_process import get
from support.free_ports import free_port
from support.waiting import MAX_WAIT_SECONDS

SERVICE = SERVICES["memwatchd"]
TOKEN = "/var/lib/memwatchd-token/token"
GRACE_SECONDS = 10
# As in deploy/compose/kernel-log.yml.
ROOT_USER = ("--user=0:64360", "--env=MEMWATCHD_STATE_DIR=/state/memwatchd", "--volume=/state")
# An option --ulimit replaces the default limits.
UNLOCKED = tuple(f"--ulimit={one}" for one in ("memlock=65536:65536", *ulimits()))
MIB = 1 << 20


def options(port: int) -> list[str]:
    """Return podman's options for what docker-compose.yml says."""
    environ = [f"--env={name}={value}" for name, value in SERVICE["environment"].items()]
    binds = [f"--volume={one['source']}:{one['target']}:ro" for one in SERVICE["volumes"] if one["type"] == "bind"]
    volumes = [f"--volume={one['target']}" for one in SERVICE["volumes"] if one["type"] == "volume"]
    return [
        "--read-only", "--read-only-tmpfs=false", *(f"--cap-drop={one}" for one in SERVICE["cap_drop"]),
        "--security-opt=no-new-privileges", f"--pid={SERVICE['pid']}", f"--uts={SERVICE['uts']}",
        *(f"--tmpfs={one}" for one in SERVICE["tmpfs"]), f"--memory={SERVICE['mem_limit']}",
        f"--pids-limit={SERVICE['pids_limit']}", f"--publish=127.0.0.1:{port}:6360", *environ, *binds, *volumes,
    ]  # fmt: skip


class Container:
    """A running container."""

    def __init__(self, podman: Podman, name: str, port: int) -> None:
        self.podman, self.name, self.port = podman, name, port

    def execute(self, *command: str, check: bool = True) -> str:
        return self.podman.run("exec", self.name, *command, check=check).stdout

    def get(self, path: str) -> Any:
        return get(self.port, path, {"Authorization": f"Bearer {self.execute('cat', TOKEN)}"})

    def doctor(self) -> dict[str, Any]:
        """Return the checks of `memwatch doctor` in the container, by id."""
        script = f"MEMWATCH_TOKEN=$(cat {TOKEN}) memwatch doctor --json"
        found = json.loads(self.execute("sh", "-c", script, check=False))
        return {one["id"]: one for one in found["checks"]}

    def is_healthy(self) -> bool:
        return self.podman.run("healthcheck", "run", self.name, check=False).returncode == 0


@contextmanager
def running(podman: Podman, *more: str) -> Iterator[Container]:
    port = free_port()
    name = f"memwatchd-{port}"
    podman.run("run", "--detach", f"--name={name}", *options(port), *more, OURS)
    container = Container(podman, name, port)
    try:
        wait_for(container.is_healthy, lambda: podman.logs(name))
        yield container
    finally:
        podman.run("rm", "--force", "--volumes", "--time=5", name, check=False)


def wait_for(wanted: Callable[[], bool], evidence: Callable[[], str]) -> None:
    until = time.monotonic() + MAX_WAIT_SECONDS
    while not wanted():
        assert time.monotonic() < until, evidence()
        time.sleep(0.5)


def test_container_reports_the_memory_of_the_host(podman: Podman) -> None:
    """Its health check of the image succeeds; API, metrics and page answer only with the created token."""
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    with running(podman) as container:
        refused = [get(container.port, path).status for path in ("/", "/metrics", "/api/v1/snapshot")]
        health = get(container.port, "/healthz").json
        snapshot = container.get("/api/v1/snapshot").json
        metrics = container.get("/metrics").text
        page = container.get("/")

    (ram,) = (pool for pool in snapshot["pools"] if pool["kind"] == "system_ram")
    assert health["status"] == "ok"
    assert refused == [401, 401, 401]
    assert ram["size_bytes"] == total
    assert [float(one) for one in re.findall(r"^memwatch_pool_size_bytes{.*} (\S+)$", metrics, re.M)] == [total]
    assert page.status == 200
    assert "System RAM" in page.text
    assert snapshot["host"] == Path("/proc/sys/kernel/hostname").read_text().strip()
    assert snapshot["machine"]["sees_all_processes"] is True


def test_container_is_confined_and_stops_within_its_grace(podman: Podman) -> None:
    """The image's user, no capability, a read-only root. History is written; SIGTERM ends it with code 0."""
    with running(podman) as container:
        status = container.execute("cat", "/proc/self/status")
        written = podman.run("exec", container.name, "touch", "/opt/memwatchd/x", check=False)
        state = container.execute("ls", SERVICE["environment"]["MEMWATCHD_STATE_DIR"])
        begin = time.monotonic()
        podman.run("stop", f"--time={GRACE_SECONDS}", container.name)
        took = time.monotonic() - begin
        code = podman.inspect(container.name)["State"]["ExitCode"]

    assert "Uid:\t64360\t64360" in status
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Read-only file system" in written.stderr
    assert state
    assert code == 0
    assert took < GRACE_SECONDS


def test_doctor_names_what_a_plain_container_lacks(podman: Podman) -> None:
    """Without the device and with a limit on locked memory: two hints with remedies, and no problem."""
    with running(podman, *UNLOCKED) as container:
        found = container.doctor()

    assert found["collectors.kmsg"]["verdict"] == "hint"
    assert "give memwatchd the host's /dev/kmsg" in found["collectors.kmsg"]["remedy"]
    assert found["memory_lock"]["verdict"] == "hint"
    assert "memlock: -1" in found["memory_lock"]["remedy"]
    assert {one["verdict"] for one in found.values()} == {"ok", "hint"}


def test_kernel_log_needs_a_device_and_not_a_mount(podman: Podman) -> None:
    """Compose's variant reads the log. A mount of the file, as by hostPath, is denied by the device cgroup."""
    root = (*ROOT_USER, "--cap-add=SYSLOG")
    (device,) = SERVICE["devices"]
    with running(podman, *root, f"--device={device}") as container:
        read = container.doctor()
        states = {one["name"]: one["state"] for one in container.get("/api/v1/collectors").json}
    with running(podman, *root, "--volume=/dev/kmsg:/host/root/dev/kmsg:ro") as container:
        denied = container.doctor()

    assert "collectors.kmsg" not in read
    assert states["kmsg"] == "ok"
    assert "this container may open no such device" in denied["collectors.kmsg"]["text"]
    assert "pass it as a device" in denied["collectors.kmsg"]["remedy"]


def test_kernel_log_without_the_capability_is_told(podman: Podman) -> None:
    """The device alone suffices only where kernel.dmesg_restrict is 0."""
    is_restricted = Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() != "0"
    (device,) = SERVICE["devices"]
    with running(podman, f"--device={device}") as container:
        found = container.doctor()

    assert ("collectors.kmsg" in found) is is_restricted
    if is_restricted:
        assert "CAP_SYSLOG" in found["collectors.kmsg"]["remedy"]


def test_memory_is_locked_with_the_capability(podman: Podman) -> None:
    """Root with CAP_IPC_LOCK only, as in the Kubernetes overlay amd: the limit does not apply."""
    with running(podman, *ROOT_USER, *UNLOCKED, "--cap-add=IPC_LOCK") as container:
        found = container.doctor()
        is_locked = container.get("/api/v1/snapshot").json["self"]["memory_locked"]

    assert is_locked is True
    assert "memory_lock" not in found


def test_image_holds_no_driver_and_little_else(podman: Podman) -> None:
    """The size of what we add to Debian, and no trace of this machine's access to registries."""
    script = "du --summarize --bytes /opt/memwatchd | cut -f1; cat /etc/pip.conf; find / -xdev -name 'libnvidia*'"
    done = podman.run("run", "--rm", "--entrypoint=sh", OURS, "-c", script, check=False)

    size, *rest = done.stdout.splitlines()
    print(f"memwatchd and its dependencies: {int(size) / MIB:.0f} MiB")
    assert int(size) < 60 * MIB  # 52 with chat, mail and passwords
    assert rest == []


def test_dependencies_have_wheels_for_the_other_architecture(podman: Podman, tmp_path: Path) -> None:
    """The image for aarch64 compiles nothing either."""
    code = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    listed = podman.run("run", "--rm", "--entrypoint=/opt/memwatchd/bin/python3", OURS, "-c", code).stdout.split()
    wanted = [one for one in listed if not one.startswith("memwatch")]
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 28, 34)]

    execute(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", "--python-version=3.13", *platforms, f"--dest={tmp_path}", *wanted)  # fmt: skip

    assert len(list(tmp_path.iterdir())) == len(wanted)
