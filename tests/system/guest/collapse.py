"""Let a process take all memory by a simulated GPU, beside innocent ones, and send what ended to the host.

Runs as root at each boot. A line of JSON from the host on the second serial port prepares the machine or begins a
collapse, and a line back ends it. This program is the instrument: it is locked in memory, and nothing ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PORT = "/dev/ttyS1"
IDLE_BYTES = 500 << 20
INNOCENT = {
    "idle": f"/root/guest/hog.py idle {IDLE_BYTES >> 20} 1",
    "database": "/root/guest/innocent.py database",
    "login": "/root/guest/innocent.py login",
}
WATCHERS = {"guardian": "memwatchd-guardian", "earlyoom": "earlyoom", "oomd": "systemd-oomd", "none": ""}
JOURNAL = Path("/var/lib/memwatchd-guardian/guardian.jsonl")
SETTINGS = Path("/etc/memwatchd/memwatchd.toml")
SPEED = Path("/run/seconds")
STATUS = Path("/run/memwatchd-guardian/status.json")
FILL_RATIO = 0.8
SAMPLE_SECONDS = 0.05
SETTLE_SECONDS = 6.0
# After the end of the process that takes memory, and after memory is full where it does not end.
AFTER_SECONDS, FULL_SECONDS = 4.0, 20.0
READY_SECONDS = 120.0
# The host takes a machine that is silent for long as one that stopped responding.
TELL_SECONDS = 2.0
Record = dict[str, Any]


def up() -> float:
    """Return the seconds since boot, as /proc/uptime."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def run(command: str, check: bool = True) -> str:
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def wait_until(wanted: Callable[[], Any], seconds: float = READY_SECONDS) -> Any:
    """Return the first result that is true. Raises RuntimeError."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError, ValueError):
            if found := wanted():
                return found
        time.sleep(0.2)
    raise RuntimeError(f"not within {seconds:.0f} s: {wanted}")


def main_pid(unit: str) -> int:
    return int(run(f"systemctl show --value --property=MainPID {unit}"))


def meminfo() -> dict[str, int]:
    with open("/proc/meminfo") as file:
        return {line.split(":")[0]: int(line.split()[1]) << 10 for line in file}


def stat_of(pid: int) -> list[str]:
    """Return the fields after the name: the first is the state (proc(5), field 3)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def processes() -> dict[tuple[int, int], str]:
    """Return the name of each process of a user by pid and start, without what programs only wait with."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = stat_of(int(folder.name))
                name = (folder / "comm").read_text().strip()
                if (folder / "cmdline").read_bytes() and fields[0] != "Z" and name != "sleep":
                    found[int(folder.name), int(fields[19])] = name
    return found


def cost_of(pid: int) -> Record:
    """Return faults and memory of a process, and where it is charged."""
    fields = stat_of(pid)
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "major_faults": int(fields[9]),
        "rss_bytes": int(status["VmRSS"].split()[0]) << 10,
        "locked_bytes": int(status["VmLck"].split()[0]) << 10,
        "oom_score_adj": int(Path(f"/proc/{pid}/oom_score_adj").read_text()),
        "cgroup": Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition(":")[2],
    }


def oom_kills() -> int:
    return int(run("grep '^oom_kill ' /proc/vmstat | cut -d' ' -f2"))


def records() -> list[Record]:
    """Return the decisions of the guardian."""
    lines = JOURNAL.read_text().splitlines() if JOURNAL.exists() else []
    return [json.loads(line) for line in lines]


def is_ready(url: str) -> bool:
    return not run(f"curl -sf -o /dev/null {url} || echo no")


def start_watcher(name: str) -> int:
    """Start one of the programs that end processes, and stop the others. Return its pid, or 0."""
    for other, unit in WATCHERS.items():
        if unit and other != name:
            run(f"systemctl stop {unit}.socket {unit}", check=False)
    run("systemctl reset-failed; systemctl start memwatchd", check=False)
    wait_until(lambda: is_ready("http://127.0.0.1:6360/readyz"))
    unit = WATCHERS[name]
    if not unit:
        return 0
    run(f"systemctl start {unit}")
    return int(wait_until(lambda: main_pid(unit)))


class Mistake(NamedTuple):
    """A second fault: arguments of the process that takes the memory, settings, actions as it begins and ends."""

    train: str = ""
    options: str = ""
    settings: str = ""
    make: Callable[[int], None] = lambda _watcher: None
    undo: Callable[[int], None] = lambda _watcher: None


def stop_for(seconds: float) -> Callable[[int], None]:
    def stop(watcher: int) -> None:
        os.kill(watcher, signal.SIGSTOP)
        run(f"(sleep {seconds}; kill -CONT {watcher}) >/dev/null 2>&1 &")

    return stop


def release_driver(_watcher: int) -> None:
    Path("/dev/gpumem").write_text("go")


def signal_daemon(name: str) -> Callable[[int], None]:
    return lambda _watcher: void(run(f"systemctl kill --kill-whom=main --signal={name} memwatchd"))


def void(_value: object) -> None:
    return


MISTAKES = {
    "term": Mistake(train="term"),
    "hang": Mistake(train="hang", undo=release_driver),
    "never": Mistake(settings='never = ["command:*"]\n'),
    "container": Mistake(options="-p PrivateMounts=yes -p PrivateTmp=yes -p PrivateNetwork=yes -p Delegate=yes"),
    "daemon_killed": Mistake(make=signal_daemon("KILL")),
    "daemon_stopped": Mistake(make=signal_daemon("STOP"), undo=signal_daemon("CONT")),
    "guardian_stopped": Mistake(make=stop_for(10)),
    "fork_bomb": Mistake(train="fork"),
}


def start_innocents() -> None:
    for name, program in INNOCENT.items():
        if run(f"systemctl is-active {name}", check=False) != "active":
            run(f"systemctl reset-failed {name}", check=False)
            run(f"systemd-run --quiet --unit={name} python3 {program}")
    pid = main_pid("idle")
    wait_until(lambda: cost_of(pid)["rss_bytes"] > IDLE_BYTES)


def start_train(options: str, last: str) -> None:
    """Start the process that will take the memory, and wait until it is in place."""
    program = f"/root/guest/train.py {FILL_RATIO} {SPEED} {last}"
    run(f"systemd-run --quiet --unit=train {options} python3 {program}")
    wait_until(lambda: main_pid("train"))
    wait_until(lambda: meminfo()["MemAvailable"] < (1 - FILL_RATIO + 0.02) * meminfo()["MemTotal"])


def prepare(job: Record) -> int:
    """Start all that is there before a collapse. Return the pid of the watcher, or 0."""
    mistake = MISTAKES[job["mistake"]] if job.get("mistake") else Mistake()
    SETTINGS.write_text(f"[guardian]\ndry_run = false\n{mistake.settings}")
    watcher = start_watcher(job["watcher"])
    start_innocents()
    start_train(mistake.options, mistake.train)
    time.sleep(SETTLE_SECONDS)
    return watcher


def collapse(job: Record, watcher: int) -> Record:
    mistake = MISTAKES[job["mistake"]] if job.get("mistake") else Mistake()
    pid = main_pid("train")
    SPEED.write_text(str(job["seconds"]))
    before, kills, decided = processes(), oom_kills(), len(records())
    cost = cost_of(watcher) if watcher else {}
    size = meminfo()["MemTotal"]
    descriptor = os.pidfd_open(pid)
    began = up()
    send({"began": began, "job": job, "used_ratio": 1 - meminfo()["MemAvailable"] / size})
    signal.pidfd_send_signal(descriptor, signal.SIGUSR1)
    mistake.make(watcher)
    samples, ended = watch(descriptor, began + job["seconds"] + FULL_SECONDS)
    time.sleep(AFTER_SECONDS)
    after = processes()
    found: Record = {
        "began": began,
        "job": job,
        "size_bytes": size,
        "ended": ended,
        "finished": up(),
        "train_pid": pid,
        "lost": sorted(name for key, name in before.items() if key not in after),
        "train_lost": ended is not None,
        "oom_kills": oom_kills() - kills,
        "least_bytes": min(available for _, available in samples),
        "samples": samples[:: max(1, len(samples) // 200)],
        "cost_before": cost,
        "cost_after": cost_of(watcher) if watcher and (Path("/proc") / str(watcher)).exists() else {},
        "records": records()[decided:],
        "login": login_answers(),
    }
    if watcher and job["watcher"] == "guardian":
        status = json.loads(STATUS.read_text())
        found["critical_bytes"] = status["critical_bytes"]
        found["status"] = status
    found["critical_at"] = crossing(samples, found.get("critical_bytes"))
    if ended is None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    os.close(descriptor)
    mistake.undo(watcher)
    run("systemctl stop train", check=False)
    return found


def watch(descriptor: int, until: float) -> tuple[list[tuple[float, int]], float | None]:
    """Sample the available bytes until the process ends, or the time is over. Return when it ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    samples: list[tuple[float, int]] = []
    told = 0.0
    while up() < until:
        if up() > told + TELL_SECONDS:
            told = up()
            send({"at": told})
        samples.append((round(up(), 3), meminfo()["MemAvailable"]))
        if poll.poll(SAMPLE_SECONDS * 1000):
            return samples, up()
    return samples, None


def crossing(samples: list[tuple[float, int]], critical: int | None) -> float | None:
    return next((at for at, available in samples if critical and available < critical), None)


def login_answers() -> bool:
    try:
        with socket.create_connection(("127.0.0.1", 2222), 5) as connected:
            return connected.recv(64) == b"login:\n"
    except OSError:
        return False


def send(content: Record) -> None:
    with open(PORT, "w") as port:
        port.write(json.dumps(content) + "\n")


def versions() -> Record:
    """Return the versions of the programs, and the services that run."""
    return {
        "linux": os.uname().release,
        "packages": run("dpkg-query -W memwatchd earlyoom systemd-oomd systemd"),
        "running": run("systemctl list-units --type=service --state=running --plain --no-legend | cut -d' ' -f1"),
        "monitored": run("oomctl 2>&1 || true"),
        "memory": meminfo(),
    }


def main() -> None:
    Path("/proc/self/oom_score_adj").write_text("-1000")
    ctypes.CDLL(None).mlockall(3)
    watcher = 0
    with open(PORT) as port:
        run(f"stty -F {PORT} raw -echo")
        # It was started before the module was loaded.
        run("systemctl restart memwatchd")
        wait_until(lambda: is_ready("http://127.0.0.1:6360/readyz"))
        send({"ready": up()})
        while line := port.readline():
            if not line.startswith("{"):
                continue
            job = json.loads(line)
            try:
                if job.get("prepare"):
                    watcher = prepare(job)
                    send({"ready": up(), "versions": versions()})
                else:
                    send(collapse(job, watcher))
            except Exception:
                send({"failed": traceback.format_exc()})


main()
