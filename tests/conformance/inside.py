"""Run one command on one machine: `unshare --mount --net --pid --fork --mount-proc python inside.py`, as root.

The job comes as JSON on stdin, and the answer goes as JSON to stdout. The files of the machine's /proc are mounted
over those of this kernel, one by one, so that /proc/self works as ever; its /sys is mounted whole. Each process of
the machine is a sleeping process with the same PID. Standard library only, except for screens, which need pyte.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PROC, SYS, DEV = Path("/proc"), Path("/sys"), Path("/dev")
# What every program needs of /dev, where a machine has files there.
OF_DEV = (
    "null",
    "zero",
    "full",
    "random",
    "urandom",
    "tty",
    "pts",
    "shm",
    "fd",
    "stdin",
    "stdout",
    "stderr",
)
OF_PROCESS = ("stat", "status", "cgroup", "fdinfo")
MAX_SECONDS = 90
COLUMNS, LINES = 200, 60


def mount(*arguments: str | Path) -> bool:
    return subprocess.run(["mount", *map(str, arguments)], stderr=subprocess.DEVNULL, check=False).returncode == 0


def lay_proc(machine: Path) -> list[str]:
    """Mount the machine's files over /proc. Return those for which this kernel has no file."""
    missing = []
    for file in sorted(one for one in machine.rglob("*") if one.is_file()):
        name = file.relative_to(machine)
        if name.parts[0].isdigit() or name.parts[0] in ("self", "device-tree") or name.name == "pid_max":
            continue
        if not (PROC / name).exists() or not mount("--bind", file, PROC / name):
            missing.append(str(name))
    return missing


def descriptors(machine: Path, own: Path) -> Path:
    """Return a folder with the links of a process; in a machine's folder, those to devices lead to its own root."""
    own.mkdir()
    for link in machine.iterdir():
        (own / link.name).symlink_to(re.sub("^.*/root(?=/dev/)", "", os.readlink(link)))
    return own


def start_processes(machine: Path, scratch: Path) -> list[int]:
    """Start a sleeping process for each PID of the machine, with its files."""
    pids = sorted(int(one.name) for one in machine.iterdir() if one.name.isdigit() and int(one.name) > 1)
    limit = PROC / "sys/kernel/pid_max"
    if pids and pids[-1] >= int(limit.read_text()):
        limit.write_text("4194304")
    for pid in pids:
        (PROC / "sys/kernel/ns_last_pid").write_text(str(pid - 1))
        if os.fork() == 0:
            signal.pause()
        for name in OF_PROCESS:
            if (machine / str(pid) / name).exists():
                mount("--bind", machine / str(pid) / name, PROC / str(pid) / name)
        if (machine / str(pid) / "fd").is_dir():
            mount("--bind", descriptors(machine / str(pid) / "fd", scratch / f"fd-{pid}"), PROC / str(pid) / "fd")
    (PROC / "sys/kernel/ns_last_pid").write_text("300000" if pids and pids[-1] > 299_999 else "30000")
    return pids


def lay_sys(machine: Path, scratch: Path) -> None:
    """Mount the machine's /sys. The processors and the device tree are added to it, where it has none."""
    own = scratch / "sys"
    shutil.copytree(machine / "sys", own, symlinks=True)
    processors = own / "devices/system/cpu"
    if not processors.exists():
        processors.mkdir(parents=True)
        mount("--rbind", SYS / "devices/system/cpu", processors)
    tree = machine / "proc/device-tree"
    if tree.is_dir() and not (own / "firmware/devicetree/base").exists():
        shutil.copytree(tree, own / "firmware/devicetree/base", symlinks=True)
    mount("--rbind", own, SYS)


def lay_dev(machine: Path, scratch: Path) -> None:
    """Mount the machine's /dev, where it has files there, such as those by which a driver is recognized."""
    if not (machine / "root/dev").is_dir():
        return
    own = scratch / "dev"
    shutil.copytree(machine / "root/dev", own, symlinks=True)
    for name in OF_DEV:
        if (DEV / name).is_symlink():
            (own / name).symlink_to(os.readlink(DEV / name))
        elif (DEV / name).is_dir():
            (own / name).mkdir()
            mount("--rbind", DEV / name, own / name)
        elif (DEV / name).exists():
            (own / name).touch()
            mount("--bind", DEV / name, own / name)
    (own / "ptmx").symlink_to("pts/ptmx")
    mount("--rbind", own, DEV)


def join_root(root: str, scratch: Path) -> None:
    """Mount this /proc, /sys and /dev and the job's own folder in the root folder that has the tool."""
    inner = Path(root + str(scratch))
    inner.mkdir(parents=True, exist_ok=True)
    for folder in (PROC, SYS, DEV):
        mount("--rbind", folder, root + str(folder))
    mount("--rbind", scratch, inner)


def ask(job: Mapping[str, Any]) -> dict[str, Any]:
    """Start the tool and return its answer: `text`, and `error` if there is none."""
    how = {"stdout": of_stdout, "http": of_http, "screen": of_screen}[job["ask"]]
    return how(job)


def of_stdout(job: Mapping[str, Any]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            job["command"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=MAX_SECONDS,
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"text": "", "error": str(error)}
    return {"text": done.stdout, "error": last_line(done.stderr) or f"exit code {done.returncode}"}


def of_http(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bodies of all addresses, some seconds after they matched `until`, as of a screen."""
    process = subprocess.Popen(
        job["command"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    ends, error = time.monotonic() + MAX_SECONDS, "no answer"
    try:
        while time.monotonic() < ends and process.poll() is None:
            try:
                if matches(job, [get(address) for address in job["addresses"]]):
                    time.sleep(job["settle_seconds"])
                    return {"text": json.dumps([get(address) for address in job["addresses"]]), "error": ""}
                error = "its answer never had what the adapter waits for"
            except OSError as failed:
                error = str(failed)
            time.sleep(0.2)
    finally:
        process.kill()
    assert process.stderr is not None
    return {"text": "", "error": last_line(process.stderr.read()) or error}


def matches(job: Mapping[str, Any], bodies: Sequence[str]) -> bool:
    return bool(re.search(job["until"], "\n".join(bodies)))


def get(address: str) -> str:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(address, timeout=10) as answer:
        body: bytes = answer.read()
        return body.decode()


def of_screen(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the screen of a program in a terminal, some seconds after it shows `until`."""
    import pyte

    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    pid, terminal = os.forkpty()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "LINES": str(LINES), "COLUMNS": str(COLUMNS)}
        try:
            os.execvp(job["command"][0], job["command"])
        finally:
            os._exit(127)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    ends, seen = time.monotonic() + MAX_SECONDS, 0.0
    while time.monotonic() < ends:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                stream.feed(os.read(terminal, 1 << 16))
            except OSError:
                break
        text = "\n".join(screen.display)
        if re.search(job["until"], text):
            seen = seen or time.monotonic()
            if time.monotonic() - seen > job["settle_seconds"]:
                return {"text": text, "error": ""}
    return {"text": "", "error": last_line("\n".join(screen.display)) or ending(pid)}


def ending(pid: int) -> str:
    """Return how a program ended that has closed its terminal."""
    status = os.waitpid(pid, os.WNOHANG)[1]
    return f"ended by {signal.strsignal(status & 0x7F)}" if status & 0x7F else "no screen"


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def prepare(job: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    scratch, machine = Path(job["scratch"]), Path(job["machine"])
    # Programs that ask with AI_ADDRCONFIG find no address where there is only 127.0.0.1.
    for words in ("link set lo up", "address add 192.0.2.1/32 dev lo"):
        subprocess.run(["ip", *words.split()], check=True)
    lay_sys(machine, scratch)
    lay_dev(machine, scratch)
    yield "processes", start_processes(machine / "proc", scratch)
    yield "missing_files", lay_proc(machine / "proc")
    if job.get("root"):
        join_root(job["root"], scratch)
    os.environ |= job["environ"]


def main() -> int:
    job = json.load(sys.stdin)
    about = dict(prepare(job))
    command = ["chroot", job["root"], *job["command"]] if job.get("root") else job["command"]
    print(json.dumps({**about, **ask({**job, "command": command})}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
