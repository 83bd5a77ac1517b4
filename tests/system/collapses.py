"""Collapses in a machine of their own, and who ends them: collapses.py [disk | run | mistakes] [NAME …].

A Debian machine runs in QEMU, emulated, with a module whose pages are in no RSS and in no cgroup, as those of a
GPU's driver (gpumem/). A process takes all memory there, beside innocent ones, watched by memwatch-guardian,
earlyoom, systemd-oomd or nothing, while a shell on a serial line is asked all the time. QEMU counts instructions
(`-icount shift=0`): a second of the machine is a billion of them, however busy the host is. The machine is booted
once and saved, so each collapse begins in the same state. Each is kept in out/system/collapses, so a run goes
on where an earlier one ended. If a file changed that the guardian imports, or that its figures come from, the
machine is made again, and the guardian's collapses begin again; `disk` makes it after any other change. Needs root.
Exits with 77 if it cannot run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise, zip_longest
from pathlib import Path

from kernel_machine import (
    NOT_RUN,
    ROOT,
    WORK,
    base_with_kernel,
    find_obstacle,
    install,
    keep_kernel,
    make_disk,
)
from saved_machine import (
    BOOT,
    BOOT_SECONDS,
    DISK,
    Machine,
    Record,
    add_layer,
    layer_of,
    make_ready,
    restore,
    state_of,
)

RESULTS = WORK / "collapses"
COUNT, SLOWEST_SECONDS, FASTEST_SECONDS = 30, 25.0, 1.7
# The tenth of these that others get as well.
COMPARED = (0, 3, 6, 10, 13, 16, 19, 23, 26, 29)
SETTINGS = "[guardian]\ndry_run = false\n"
DROP_IN = "[Service]\nEnvironment=NVML_SIM_STATE=/proc/gpumem\n"
FSTAB = "/dev/vda / ext4 defaults 0 1\n"
HEADERS = "linux-headers-cloud-amd64 gcc libc6-dev make"
# The guardian, and what its figures come from in the daemon: their files and all imported ones decide its results.
DECIDING = (
    *("memwatchd.guardian_cli", "memwatch.core.reading.sampler", "memwatch.core.collectors.meminfo"),
    *("memwatch.core.collectors.processes", "memwatch.core.collectors.nvml"),
)
LIST_FILES = """
import sys
from importlib import import_module
for name in sys.argv[1:]:
    import_module(name)
print(*(one.__file__ for name, one in sys.modules.items() if name.partition(".")[0] in ("memwatch", "memwatchd")))
"""
# The files in the saved machine, as `compute_key` returns them.
KEY = WORK / "collapses.key"
WATCHERS = ("guardian", "earlyoom", "oomd", "none")
SHELL = """[Unit]
After=multi-user.target
[Service]
ExecStart=/bin/bash
StandardInput=tty
StandardOutput=tty
TTYPath=/dev/ttyS2
Restart=always
RestartSec=1
[Install]
WantedBy=multi-user.target
"""
UNIT = """[Unit]
After=memwatchd.service shell.service multi-user.target
[Service]
OOMScoreAdjust=-1000
ExecStartPre=insmod /root/gpumem.ko
ExecStart=python3 /root/guest/collapse.py
[Install]
WantedBy=multi-user.target
"""
# Of the host. A machine that sends nothing for this time, and for this CPU time of its emulator, has stopped
# responding: on a busy host, one that was silent for 240 s and 30 s of CPU time went on.
SILENT_SECONDS, SILENT_CPU_SECONDS = 240.0, 120.0
# The console has a line for each process that the kernel kills.
KILLED = re.compile(r"^\[ *(\d+\.\d+)\] Out of memory: Killed process \d+ \((.*?)\) total-vm", re.MULTILINE)


def seconds_of(number: int) -> float:
    """Return the time from 80 % to full of a collapse, in seconds of the machine."""
    return round(SLOWEST_SECONDS * math.pow(FASTEST_SECONDS / SLOWEST_SECONDS, number / (COUNT - 1)), 2)


def jobs(watcher: str) -> list[Record]:
    """Return the collapses: first those that are compared, and of these the fast ones, which take least time.

    The others are in an order that spreads the speeds, as a run may be ended early: by their bits, the last first.
    """
    others = sorted(set(range(COUNT)) - set(COMPARED), key=lambda number: f"{number:05b}"[::-1])
    numbers = [*reversed(COMPARED), *(others if watcher == "guardian" else [])]
    return [{"watcher": watcher, "number": number, "seconds": seconds_of(number)} for number in numbers]


# Time from 80 % to full of each. Figures of the daemon older than 5 s decide nothing, so two speeds where it fails.
MISTAKES = {
    "term": (25.0,),
    "hang": (8.0,),
    "never": (8.0,),
    "container": (8.0,),
    "daemon_killed": (3.0, 25.0),
    "daemon_stopped": (3.0, 25.0),
    "guardian_stopped": (8.0,),
    "fork_bomb": (8.0,),
}


# These have other programs or settings from the start, so the machine is prepared for each.
PREPARED = ("term", "hang", "never", "container", "fork_bomb")


def mistakes() -> list[Record]:
    return [
        {"watcher": "guardian", "mistake": name, "seconds": seconds}
        for name, times in MISTAKES.items()
        for seconds in times
    ]


def build(root: Path, target: Path) -> None:
    """Build the module and the driver's library, in a copy of the machine with headers and a compiler."""
    tools = WORK / "collapses-tools"
    if not (tools / "made").exists():
        shutil.rmtree(tools, ignore_errors=True)
        subprocess.run(["cp", "--archive", "--reflink=auto", root, tools], check=True)
        (tools / "made").unlink()
        shutil.copy("/etc/resolv.conf", tools / "etc/resolv.conf")
        enter(tools, f"apt-get update && apt-get install --yes --no-install-recommends {HEADERS} && apt-get clean")
        (tools / "made").touch()
    for source in ("system/gpumem", "simulators/nvml"):
        shutil.copytree(ROOT / "tests" / source, tools / "root" / Path(source).name, dirs_exist_ok=True)
    enter(tools, "cd /root/gpumem && make -s -C /usr/src/linux-headers-*cloud-amd64 M=/root/gpumem modules")
    enter(tools, "cd /root/nvml && gcc -shared -fPIC -std=c11 -O1 -pthread -o libnvidia-ml.so.1 *.c")
    shutil.copy(tools / "root/gpumem/gpumem.ko", target / "root/gpumem.ko")
    shutil.copy(tools / "root/nvml/libnvidia-ml.so.1", target / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")


def enter(root: Path, command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["chroot", root, "sh", "-ec", command], check=True, stdout=subprocess.DEVNULL, env=environment)


def make_disks(package: Path) -> None:
    """Create the machine's disk with the package, the module and the programs of the guest."""
    root = WORK / "collapses-root"
    drop_ins = install(root, package, SETTINGS, "collapse.py", FSTAB)
    (drop_ins / "driver.conf").write_text(DROP_IN)
    build(base_with_kernel(), root)
    units = root / "etc/systemd/system"
    (units / "shell.service").write_text(SHELL)
    (units / "check.service").write_text(UNIT)
    enter(root, "ldconfig && systemctl enable shell.service && systemctl disable memwatchd-guardian")
    make_disk(DISK, "2500M", root)
    keep_kernel(root, BOOT)
    shutil.rmtree(root)


def prepare(watcher: str) -> None:
    """Save the machine as it is before a collapse: the watcher runs, and 80 % are used."""
    with restore("booted", add_layer(watcher, layer_of("booted"), "qcow2")) as machine:
        machine.send({"watcher": watcher, "prepare": True})
        found = machine.receive(BOOT_SECONDS)
        if "failed" in found:
            raise RuntimeError(found["failed"])
        keep({"job": {"watcher": watcher}, **found})
        machine.save(state_of(watcher))


def carry_out(machine: Machine, job: Record) -> Record:
    """Have one collapse, and return what ended in it and how long the shell did not answer."""
    machine.send(job)
    began: Record = {}
    used = machine.cpu_seconds()
    while True:
        try:
            message = machine.receive(SILENT_SECONDS)
        except (TimeoutError, EOFError) as error:
            if isinstance(error, TimeoutError) and machine.cpu_seconds() - used < SILENT_CPU_SECONDS:
                continue
            last = machine.alive[-1] if machine.alive else None
            return {
                **began,
                "job": job,
                "wedged": True,
                "last_alive": last,
                **kills_of(machine.console.read_text()),
            }
        used = machine.cpu_seconds()
        if "finished" in message or "failed" in message:
            return {**message, **shell_of(machine.alive, message)}
        began = message if "began" in message else began


def kills_of(console: str) -> Record:
    """Return the processes that the kernel killed, by a console, and the machine's time at the last of them."""
    kills = KILLED.findall(console)
    return {"killed": sorted({name for _, name in kills}), "last_kill": float(kills[-1][0]) if kills else None}


def shell_of(alive: list[float], found: Record) -> Record:
    """Return the longest time without an answer of the shell, from the begin of the collapse to the end."""
    if "failed" in found:
        return {}
    first, last = found["began"], found["finished"]
    within = [first, *(at for at in alive if first <= at <= last), last]
    gaps = [(after - before, before) for before, after in pairwise(within)]
    longest, at = max(gaps)
    return {"answers": len(within) - 2, "longest_gap": longest, "gap_at": at - first}


def build_of(watcher: str) -> str:
    """Return the version of memwatchd in the saved machine."""
    versions = json.loads((RESULTS / f"{name_of({'watcher': watcher})}.json").read_text())["versions"]
    packages = dict(line.split("\t") for line in versions["packages"].splitlines())
    return str(packages["memwatchd"])


def compute_key() -> str:
    """Return a hash of the files that decide the guardian's results."""
    listing = subprocess.run(
        [sys.executable, "-c", LIST_FILES, *DECIDING], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    digest = hashlib.sha256()
    for file in sorted(map(Path, listing.split())):
        digest.update(f"{file.relative_to(ROOT)} ".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def forget_guardian(key: str) -> None:
    """Remove the results of another build of the guardian. Those of other programs do not depend on it."""
    for file in RESULTS.glob("guardian-*.json"):
        if json.loads(file.read_text()).get("key") != key:
            file.unlink()


def name_of(job: Record) -> str:
    """Return the name of a result: of a watcher and its number, or its mistake; of the machine without a number."""
    which = job.get("mistake") or (f"{job['number']:02}" if "number" in job else "machine")
    return f"{job['watcher']}-{which}" + (f"-{job['seconds']:g}" if "mistake" in job else "")


def keep(found: Record) -> None:
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name_of(found['job'])}.json"
    file.with_suffix(".new").write_text(json.dumps(found, indent=1))
    file.with_suffix(".new").replace(file)


def run_job(job: Record) -> Record:
    """Have a collapse in the machine as it was saved. With a mistake, it is prepared for it."""
    if not state_of(job["watcher"]).exists():
        prepare(job["watcher"])
    if (mistake := job.get("mistake")) in PREPARED:
        with restore("booted") as machine:
            machine.send({"watcher": job["watcher"], "mistake": mistake, "prepare": True})
            found = machine.receive(BOOT_SECONDS)
            return found if "failed" in found else carry_out(machine, job)
    with restore(job["watcher"]) as machine:
        return carry_out(machine, job)


def run_jobs(wanted: list[Record]) -> None:
    """Have all collapses that are not kept yet, each in the machine as it was saved."""
    for job in wanted:
        if (RESULTS / f"{name_of(job)}.json").exists():
            continue
        found = {**run_job(job), "job": job}
        if "failed" in found:
            print(found["failed"], flush=True)
            continue
        found |= {"memwatchd": build_of(job["watcher"]), "key": KEY.read_text()}
        keep(found)
        print(f"{time.strftime('%X')} {brief(found)}", flush=True)


def brief(found: Record) -> str:
    keys = (
        "job",
        "lost",
        "ended",
        "began",
        "critical_at",
        "oom_kills",
        "answers",
        "longest_gap",
        "wedged",
        "least_bytes",
    )
    return f"{name_of(found['job'])} {json.dumps({key: found.get(key) for key in keys})}"


def main(command: str = "all", *names: str) -> int:
    """Build the machine, or have the collapses. `names`: of watchers or of mistakes; all without one."""
    if reason := find_obstacle():
        print(f"NOT RUN: {reason}")
        return NOT_RUN
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    key = compute_key()
    is_made = state_of("booted").exists() and KEY.exists() and KEY.read_text() == key
    if command == "disk" or (command == "all" and not is_made):
        KEY.unlink(missing_ok=True)
        make_disks((ROOT / "dist/memwatchd.deb").resolve())
        make_ready()
        KEY.write_text(key)
        forget_guardian(key)
    if command in ("run", "all"):
        # A run that is ended early has the same collapses of all.
        turns = zip_longest(*map(jobs, names or WATCHERS))
        run_jobs([job for turn in turns for job in turn if job])
    if command in ("mistakes", "all"):
        run_jobs([job for job in mistakes() if not names or job["mistake"] in names])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
