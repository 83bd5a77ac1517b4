"""Cause real incidents in the virtual machine, and send what memwatchd reports of each to the host.

Runs as root at each boot. A line on the second serial port: a name and JSON.
"""

from __future__ import annotations

import json
import subprocess
import time
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

PORT = Path("/dev/ttyS1")
STATE = "/var/lib/memwatchd"
BOOTS = Path("/root/boots")
HOG = "python3 /root/guest/hog.py"
END_SECONDS = 180.0
Record = dict[str, Any]


def send(name: str, content: Any) -> None:
    with PORT.open("w") as port:
        port.write(f"{name} {json.dumps(content)}\n")


def run(command: str, check: bool = True) -> str:
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def ask(path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:6360{path}", timeout=120) as answer:
        return json.load(answer)


def wait_until(wanted: Callable[[], Any], seconds: float) -> Any:
    """Return the first result that is true, or None."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if found := wanted():
                return found
        except OSError:
            pass
        time.sleep(0.3)
    return None


def main_pid(unit: str) -> int:
    return int(run(f"systemctl show --value --property=MainPID {unit}"))


def restart_daemon() -> None:
    """Close the open incident. The next one begins with the process list of the new daemon."""
    run("systemctl restart memwatchd")
    wait_until(lambda: len(ask("/api/v1/processes")) > 0, 60)
    time.sleep(2)


def start(name: str, size: int, seconds: float, options: str = "", last: str = "") -> int:
    run(f"systemd-run --quiet --unit={name} -p OOMPolicy=continue {options} {HOG} {name} {size} {seconds} {last}")
    return int(wait_until(lambda: main_pid(name), 20))


def incidents() -> dict[str, Record]:
    return {one["id"]: one for one in ask("/api/v1/incidents")}


def observe(name: str, cause: Callable[[], Record], seconds: float = 60.0) -> None:
    """Send the new incident that has a killer, with the truth about it."""
    before = incidents()
    try:
        truth = cause()
        found = wait_until(lambda: [one for one in new_ones(before) if one["killer"]], seconds)
        send(name, {"truth": truth, "incidents": found or new_ones(before)})
    except Exception:
        send(name, {"failed": traceback.format_exc()})
    run("systemctl reset-failed", check=False)


def new_ones(before: dict[str, Record]) -> list[Record]:
    return [one for key, one in incidents().items() if key not in before]


def grow_until_killed(name: str, size: int, seconds: float, options: str = "", last: str = "") -> Record:
    """Start a program that takes memory, and wait for its end. Return the truth about it."""
    pid = start(name, size, seconds, options, last)
    wait_until(lambda: main_pid(name) == 0, END_SECONDS)
    return {"pid": pid, "unit": f"{name}.service"}


def reach_limit() -> Record:
    return grow_until_killed("limited", 400, 6, "-p MemoryMax=200M")


def use_earlyoom() -> Record:
    Path("/etc/default/earlyoom").write_text('EARLYOOM_ARGS="-r 3600 -m 25"\n')
    run("systemctl start earlyoom")
    truth = grow_until_killed("grower", 700, 8)
    run("systemctl stop earlyoom")
    return truth


def use_nohang() -> Record:
    run("sed -i 's/^soft_threshold_min_mem .*/soft_threshold_min_mem = 25 %/' /etc/nohang/nohang.conf")
    run("systemctl start nohang")
    time.sleep(5)
    truth = grow_until_killed("eater", 700, 8)
    run("systemctl stop nohang")
    return truth


def kill_by_hand() -> Record:
    pid = start("worker", 400, 4)
    time.sleep(12)
    run(f"kill -9 {pid}")
    return {"pid": pid, "unit": "worker.service"}


def press_slice() -> Record:
    """Let systemd-oomd end a unit that reclaims all the time, above its MemoryHigh=."""
    run("systemctl start systemd-oomd")
    limits = "ManagedOOMMemoryPressure=kill ManagedOOMMemoryPressureLimit=10%"
    run(f"systemctl set-property --runtime squeezed.slice {limits}")
    return grow_until_killed("squeezed", 300, 2, "--slice=squeezed.slice -p MemoryHigh=100M", "touch")


def fill_swap() -> Record:
    """Let systemd-oomd end the unit with most swap."""
    run("systemctl set-property --runtime system.slice ManagedOOMSwap=kill")
    truth = grow_until_killed("swapper", 960, 10)
    run("systemctl set-property --runtime system.slice ManagedOOMSwap=auto; systemctl stop systemd-oomd")
    return truth


def exhaust_while_frozen() -> Record:
    """Let the kernel kill a bystander and then the cause, while the daemon's file system is frozen."""
    bystander = start("bystander", 120, 0.5, "-p OOMScoreAdjust=1000")
    wait_until(lambda: "bystander" in json.dumps(ask("/api/v1/processes")), 20)
    time.sleep(11)
    began = time.time()
    run(f"fsfreeze --freeze {STATE}")
    try:
        pid = start("leaker", 1000, 8)
        answers = [is_ticking() for _ in range(12)]
        wait_until(lambda: main_pid("leaker") == 0, END_SECONDS)
    finally:
        run(f"fsfreeze --unfreeze {STATE}")
    lag = ask(f"/api/v1/history?series=self.tick_lag_seconds&from={began}&points=2000")["series"][0]["max"]
    return {
        "pid": pid,
        "bystander": bystander,
        "answers": answers,
        "lag": max(most or 0 for most in lag),
        "restarts": int(run("systemctl show --value --property=NRestarts memwatchd")),
    }


def is_ticking() -> bool:
    """Return True if the snapshot is at most 4 s old, and wait a second."""
    time.sleep(1)
    try:
        return time.time() - float(ask("/api/v1/snapshot")["unix"]) < 4
    except OSError:
        return False


def first_boot() -> None:
    run("dd if=/dev/zero of=/swap bs=1M count=192 status=none && chmod 600 /swap && mkswap /swap")
    observe("memory_max", reach_limit)
    observe("earlyoom", use_earlyoom)
    restart_daemon()
    observe("kill_9", kill_by_hand)
    restart_daemon()
    observe("nohang", use_nohang)
    run("swapon /swap")
    restart_daemon()
    observe("oomd_pressure", press_slice)
    restart_daemon()
    observe("oomd_swap", fill_swap)
    run("swapoff /swap")
    restart_daemon()
    observe("global_oom", exhaust_while_frozen)
    restart_daemon()
    time.sleep(20)
    send("cut", {"kept": sorted(incidents())})
    time.sleep(3600)


def second_boot() -> None:
    """Send the incident of the power cut, then fill the memory, until the host cuts the power again."""
    found = incidents()
    send("power", {"incidents": list(found.values())})
    pid = start("filler", 680, 10)
    wait_until(lambda: any(one["level"] == "critical" for one in ask("/api/v1/pressure")), 60)
    time.sleep(3)
    send("cut", {"pid": pid, "kept": sorted(found)})
    time.sleep(3600)


def third_boot() -> None:
    send("freeze", {"incidents": list(incidents().values())})
    run("systemctl poweroff --no-block")


def main() -> None:
    boot = int(BOOTS.read_text()) if BOOTS.exists() else 0
    BOOTS.write_text(str(boot + 1))
    send("booted", {"boot": boot})
    # The kernel then writes only what a program forces to the disk.
    run("sync; echo 0 > /proc/sys/vm/dirty_writeback_centisecs; echo -1000 > /proc/self/oom_score_adj")
    if not wait_until(lambda: ask("/readyz"), 300):
        send("failed", run("journalctl -u memwatchd --no-pager -o cat | tail -n 40"))
    send("ready", {"uptime": Path("/proc/uptime").read_text()})
    time.sleep(5)
    try:
        (first_boot, second_boot, third_boot)[boot]()
    except Exception:
        send("failed", traceback.format_exc())


main()
