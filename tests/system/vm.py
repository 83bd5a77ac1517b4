"""Run the package under its own kernel (User-Mode Linux): effects of control groups and the OOM killer.

python tests/system/vm.py disk: build the machine's disk from out/system and the package. Needs root.
python tests/system/vm.py boot: boot it, and print the results. Exits with 77 where this kernel cannot run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from machine import base_of

ROOT = Path(__file__).parent.parent.parent
WORK = ROOT / "out" / "system"
DISK = WORK / "vm.img"
BOOT = ["mem=768M", "root=/dev/ubda", "rw", "con=null", "con0=fd:0,fd:1", "quiet"]
# Twice the time that it takes on a slow machine.
VM_SECONDS = 900
# User-Mode Linux 6.1 fails with this message before its init on processors with AMX (seen on a Sapphire Rapids):
# it sets registers of the size that it was built with, and the host expects those of the processor.
CANNOT = "ptrace set fp regs failed"
NOT_RUN = 77

# Runs in the machine, after multi-user.target. Its output on the console is checked outside.
SCRIPT = r"""#!/bin/bash
exec >/dev/console 2>&1
report() { echo "VM $1=$2"; }
show() { systemctl show --value --property="$1" memwatchd; }
ask() { curl -sf localhost:6360/readyz >/dev/null; }
ready() { for _ in $(seq 100); do ask && return 0; sleep 0.3; done; return 1; }
ready && report ready yes
pid=$(show MainPID)
report oom_score_adj "$(cat /proc/$pid/oom_score_adj)"
report locked "$(curl -s localhost:6360/metrics | grep -c '^memwatch_memory_locked 1')"
report memory_min "$(cat /sys/fs/cgroup/memwatchd.slice/memwatchd.service/memory.min)"
report slice_min "$(cat /sys/fs/cgroup/memwatchd.slice/memory.min)"
kill -9 "$pid"; sleep 3; ready && report after_kill yes
pid=$(show MainPID)
# The first state on disk is written after 10 s, and has the number of earlier kills.
sleep 35
echo 20M > /sys/fs/cgroup/memwatchd.slice/memwatchd.service/memory.max
sleep 3; ready
[ "$(show MainPID)" != "$pid" ] && curl -s 'localhost:6360/api/v1/events?limit=100' |
    grep -q 'while memwatchd was not running' && report own_oom yes
pid=$(show MainPID)
dd if=/dev/zero of=/swap bs=1M count=400 status=none; chmod 600 /swap; mkswap -q /swap; swapon /swap
# Each page of a process is a mapping on the host, which allows 65,530, so a file takes most of the memory.
mkdir /taken; mount -t ramfs ramfs /taken; dd if=/dev/zero of=/taken/file bs=1M count=440 status=none
python3 /root/thrash "$pid"
umount /taken; swapoff /swap
report before_oom "$pid"
python3 - <<'PY' || true
import time
allocated = []
while True:
    allocated.append(bytearray(b"x" * (8 << 20)))
    time.sleep(0.05)
PY
ready && report after_oom yes
report survivor "$(show MainPID)"
report oom_kills "$(grep '^oom_kill ' /proc/vmstat | cut -d' ' -f2)"
curl -s 'localhost:6360/api/v1/events?limit=100' > /root/events
python3 - <<'PY'
import json
events = json.load(open("/root/events"))
critical = [e["unix"] for e in events if "critical" in e["text"]]
# That at its own limit is no matter of the machine.
own = "while memwatchd was not running"
kills = [e["unix"] for e in events if e["kind"] == "oom_kill" and own not in e["text"]]
first = kills and all(any(0 <= kill - one <= 20 for one in critical) for kill in kills)
print("VM critical_first=" + ("yes" if first else f"no {critical} {kills}"))
PY
systemctl poweroff --no-block
"""
# Touch 100 MiB more than available for 30 s, then print the effects on the daemon.
THRASH = r"""
import json, random, sys, time, urllib.request

def faults():
    return int(open(f"/proc/{sys.argv[1]}/stat").read().rpartition(")")[2].split()[9])

def ask(path):
    return json.load(urllib.request.urlopen(f"http://127.0.0.1:6360/api/v1/{path}"))

def reasons_now():
    return {(one["level"], why["signal"]) for one in ask("pressure") for why in one["reasons"]}

available = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable"))
before = faults()
allocated = bytearray((available << 10) + (100 << 20))
for at in range(0, len(allocated), 4096):
    allocated[at] = 1
began = asked = time.time()
reasons = set()
while time.time() < began + 30:
    for _ in range(256):
        allocated[random.randrange(len(allocated))] = 1
    if time.time() > asked + 1:  # a moment with less swapping may be "high"
        reasons |= reasons_now()
        asked = time.time()
reasons |= reasons_now()
after = faults()
critical = any(level == "critical" and signal in ("util", "floor", "swap") for level, signal in reasons)
del allocated
(series,) = ask(f"history?series=self.tick_lag_seconds&from={began}&points=2000")["series"]
lag = max(most or 0 for most in series["max"])
well = lag < 1 and after - before < 100 and critical
print(f"VM thrash={'yes' if well else 'no'}, lag {lag:.2f} s, {after - before} major faults, {sorted(reasons)}")
"""
UNIT = """[Unit]
After=memwatchd.service multi-user.target
[Service]
OOMPolicy=continue
ExecStart=/root/check
[Install]
WantedBy=graphical.target multi-user.target
"""
WANTED = {
    "ready": r"yes",
    "oom_score_adj": r"-900",
    "locked": r"1",
    "memory_min": str(96 << 20),
    "slice_min": str(128 << 20),
    "after_kill": r"yes",
    "after_oom": r"yes",
    "own_oom": r"yes",
    "thrash": r"yes, .*",
    "oom_kills": r"[1-9]\d*",
    "critical_first": r"yes",
}


def make_disk(package: Path, disk: Path) -> None:
    """Create a disk with the package installed and the script enabled."""
    WORK.mkdir(parents=True, exist_ok=True)
    root = WORK / "vm"
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "--archive", "--reflink=auto", base_of(WORK), root], check=True)
    shutil.copy(package, root / "root/memwatchd.deb")
    install = ["chroot", str(root), "dpkg", "--install", "/root/memwatchd.deb"]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    (root / "root/check").write_text(SCRIPT)
    (root / "root/check").chmod(0o755)
    (root / "root/thrash").write_text(THRASH)
    (root / "etc/systemd/system/check.service").write_text(UNIT)
    (root / "etc/fstab").write_text("/dev/ubda / ext4 defaults 0 1\n")
    subprocess.run(["chroot", root, "systemctl", "enable", "check.service"], check=True, capture_output=True)
    disk.unlink(missing_ok=True)
    subprocess.run(["mkfs.ext4", "-q", "-d", root, disk, "1500M"], check=True)
    shutil.rmtree(root)


def boot(disk: Path) -> str:
    """Boot the machine and return its console output, until it powers off or times out.

    All of its processes are killed at the end, also on SIGTERM, as the machine would otherwise keep running.
    """
    command = ["linux.uml", f"ubda={disk}", *BOOT]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    ) as machine:
        try:
            output, _ = machine.communicate(timeout=VM_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"✗ the machine was still running after {VM_SECONDS} s")
            os.killpg(machine.pid, signal.SIGKILL)
            output, _ = machine.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(machine.pid, signal.SIGKILL)
    return output.decode("utf-8", "replace")


def main(command: str) -> int:
    if command == "disk":
        make_disk((ROOT / "dist/memwatchd.deb").resolve(), DISK)
        return 0
    output = boot(DISK)
    (WORK / "vm.log").write_text(output)
    if CANNOT in output:
        print("NOT RUN: User-Mode Linux cannot start on this processor: it does not support its registers (AMX)")
        return NOT_RUN
    found = dict(re.findall(r"VM (\w+)=([^\r\n]*)", output))
    bad = [key for key, wanted in WANTED.items() if not re.fullmatch(wanted, found.get(key, ""))]
    if found.get("before_oom") != found.get("survivor"):
        bad.append("survivor")
    lines = [f"{'✗' if key in bad else '✓'} {key}: {found.get(key, 'missing')}" for key in {**found, **WANTED}]
    (WORK / "vm.txt").write_text("".join(f"{line}\n" for line in lines))
    print("\n".join(lines))
    for key in bad:
        print(f"✗ {key} is {found.get(key, 'missing')}, expected {WANTED.get(key, found.get('before_oom'))}")
    if bad:
        print(f"console output: {WORK / 'vm.log'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
