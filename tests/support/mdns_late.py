"""A machine that gets its address after memwatchd has started, in a network namespace without any: prints JSON.

python -m support.mdns_late
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable

from memwatch_monitor.neighbours.found import FoundMachines
from memwatchd.neighbours.mdns import Announcement, Discovery
from support.mdns_pair import ADDRESS

MAX_SECONDS = 30.0
START = "ip link set lo up multicast on"
LATE = f"ip addr add {ADDRESS}/32 dev lo && ip route add 224.0.0.0/4 dev lo"


def start(name: str, host: str = "0.0.0.0") -> FoundMachines:
    found = FoundMachines()
    Discovery(found, name, name.encode().hex()[:16], Announcement(6360, False, host)).start()
    return found


def names(found: FoundMachines) -> set[str]:
    return {one.name for one in found.others((), ())}


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + MAX_SECONDS
    while not condition() and time.monotonic() < until:
        time.sleep(0.2)


def main() -> None:
    subprocess.run(START, shell=True, check=True)
    early = start("early")
    time.sleep(1.0)
    subprocess.run(LATE, shell=True, check=True)
    late, only_ipv6 = start("late"), start("six", "fd00::5")
    expected = {"early", "late"}
    wait_until(lambda: all(names(one) == expected for one in (early, late, only_ipv6)))
    print(json.dumps([sorted(names(one)) for one in (early, late, only_ipv6)]))


if __name__ == "__main__":
    main()
