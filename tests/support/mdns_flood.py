"""A flood of names beside two real machines, in a network namespace: prints the first machine's list and growth.

python -m support.mdns_flood FOLDER
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from support.daemon_process import RunningDaemon, running_daemon
from support.forked import running_in_child
from support.free_ports import free_port
from support.mdns_packets import answer
from support.mdns_pair import ADDRESS, CONFIG
from support.neighbours import folder

NAMES = 100_000
BATCH, PAUSE_SECONDS = 64, 0.01
# An address of neither machine: with one of theirs, answers of the other machine come from the flooder's address as
# well, and have its budget.
FLOODER, IP_TRANSPARENT = "10.99.0.9", 19
GROUP = ("224.0.0.251", 5353)
NETWORK = (
    f"ip link set lo up multicast on && ip addr add {ADDRESS}/32 dev lo"
    ' && ip route add 224.0.0.0/4 dev lo && exec "$@"'
)


@contextmanager
def flood() -> Iterator[int]:
    """Send answers with ever new names from one address. Yields a pipe that gets a byte after NAMES of them."""
    done, tell = os.pipe()
    with running_in_child(lambda: send_names(tell)):
        yield done


def send_names(tell: int) -> None:
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sender.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(ADDRESS))
    sender.bind((FLOODER, GROUP[1]))
    for number in count():
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        sender.sendto(answer(f"flood-{number}", f"h{number}.local", address, f"{number + 1:x}"), GROUP)
        if number % BATCH == 0:
            time.sleep(PAUSE_SECONDS)  # more than 6,400 a second would only fill the buffers of the kernel
        if number == NAMES:
            os.write(tell, b".")


def resident_kib(daemon: RunningDaemon) -> int:
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))


def observe(scratch: Path) -> dict[str, Any]:
    """Start a machine, the flood, and then another machine, which has to be found while the flood goes on."""
    with running_daemon(folder(scratch, "a"), "--listen", f"{ADDRESS}:{free_port()}", config=CONFIG) as daemon:
        daemon.get("/api/v1/machines")
        before = resident_kib(daemon)
        with flood() as done:
            other = ["--demo", "rtx4090", "--listen", f"{ADDRESS}:{free_port()}"]
            with running_daemon(folder(scratch, "b"), *other, config=CONFIG):
                found = daemon.wait_for(
                    "/api/v1/machines", lambda rows: any(one["name"] == "ember" for one in rows)
                )
                os.read(done, 1)
                return {"found": found, "grown_kib": resident_kib(daemon) - before}


if __name__ == "__main__":
    print(json.dumps(observe(Path(sys.argv[1]))))
