"""Machines that announce themselves on one network, in a network namespace: prints the answers of the first.

python -m support.mdns_pair FOLDER
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.client_process import memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.free_ports import free_port
from support.neighbours import folder, neighbours, wait_for_state

# An address of the loopback interface outside 127.0.0.0/8 counts as one that others can reach.
ADDRESS = "10.99.0.1"
NETWORK = (
    f"ip link set lo up multicast on && ip addr add {ADDRESS}/32 dev lo && ip route add 224.0.0.0/4 dev lo"
    ' && exec "$@"'
)
CONFIG = "[discovery]\nmdns = true\n[web]\ninsecure = true\n"


def observe(scratch: Path) -> dict[str, Any]:
    """Start two machines, join them, end the other."""
    seen: dict[str, Any] = {}
    with ExitStack() as stack:
        port = free_port()

        def start(name: str, *arguments: str, config: str = CONFIG) -> RunningDaemon:
            return stack.enter_context(running_daemon(folder(scratch, name), *arguments, config=config))

        daemon = start("a")
        other = start("b", "--demo", "rtx4090", "--listen", f"{ADDRESS}:{port}")
        seen["found"] = wait_for_states(daemon, {"up", "found"})
        seen["page"] = daemon.get("/machines").text
        seen["navigation"] = daemon.get("/").text
        seen["own_page"] = daemon.get("/machines/ember").status
        seen["command"] = memwatch("machines", "--url", daemon.url).stdout
        url = next(one["url"] for one in seen["found"] if one["state"] == "found")
        joined = start("c", config=CONFIG + neighbours({"joined": url}))
        wait_for_state(joined, "joined", "up")
        seen["joined"] = wait_for_states(joined, {"up"})
        other.terminate()
        seen["ended"] = wait_for_states(daemon, {"up"})
        seen["has_library"] = "zeroconf" in Path(f"/proc/{daemon.pid}/maps").read_text()
        seen["log"] = daemon.read_log()
    return seen


def wait_for_states(daemon: RunningDaemon, states: set[str]) -> Any:
    return daemon.wait_for("/api/v1/machines", lambda found: {one["state"] for one in found} == states)


if __name__ == "__main__":
    print(json.dumps(observe(Path(sys.argv[1]))))
