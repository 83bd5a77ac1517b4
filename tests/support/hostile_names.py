"""A machine whose names attack terminals and logs, and a check that no such character gets out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.alert_machine import AlertMachine
from support.process_folders import add_process, stat_line

# Window title, clear screen, a forged line, C1 CSI, a bidirectional override and isolate, a line separator, DEL.
ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp\u2066\u2028\x7f"
HOSTILE = f"{ESCAPES}\n<0>forged"
# C0, DEL, C1, line and paragraph separators, bidirectional controls, lone surrogates.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MIB = 1 << 20
PID = 4242


def find_controls(data: bytes, allowed: str = "\n") -> list[str]:
    """Return the control characters in raw output, with what precedes them. Output that is not UTF-8 fails."""
    text = data.decode("utf-8", "surrogateescape")
    return [text[max(0, one.start() - 40) : one.end()] for one in _CONTROLS.finditer(text) if one[0] not in allowed]


def find_controls_in_json(data: bytes, allowed: str = "") -> list[str]:
    """Return those in raw JSON and in its decoded texts: a program that reads the JSON prints these."""
    found = find_controls(data)
    for text in _texts(json.loads(data)):
        found += find_controls(text.encode("utf-8", "surrogatepass"), allowed)
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def hostile_machine(scratch: Path) -> AlertMachine:
    """Create a workstation with a hostile process, command line, user, unit, container, host, board and log."""
    machine = AlertMachine.of(scratch)
    proc, sysfs, root = (machine.folder / name for name in ("proc", "sys", "root"))
    pages = 9000 * MIB // os.sysconf("SC_PAGE_SIZE")
    add_process(
        proc,
        stat_line(PID, HOSTILE, rss=pages),
        status=b"Uid:\t1234\t1234\t1234\t1234\n",
        cgroup=f"0::/evil{ESCAPES}.slice/lxc.payload.box{ESCAPES}/evil{ESCAPES}.service\n".encode(),
        cmdline=HOSTILE.encode() + b"\0\xff\0",
    )
    (root / "etc").mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text(f"mallory{ESCAPES}:x:1234:1234::/:/bin/sh\n")
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/kmsg").write_bytes(b"")
    (proc / "sys/kernel").mkdir(parents=True, exist_ok=True)
    (proc / "sys/kernel/hostname").write_text(f"box{ESCAPES}\n")
    dmi = sysfs / "class/dmi/id"
    dmi.mkdir(parents=True, exist_ok=True)
    (dmi / "sys_vendor").write_text("Acme\n")
    (dmi / "product_name").write_text(f"Board{ESCAPES}\n")
    return machine


def log_hostile_oom_kill(machine: AlertMachine) -> None:
    """Append an OOM kill of the hostile process to the kernel log, with the name unescaped."""
    name = ESCAPES.encode()
    with (machine.folder / "root/dev/kmsg").open("ab", buffering=0) as log:
        log.write(b"3,1,1000,-;Killed process %d (" % PID + name + b") total-vm:9kB, anon-rss:8kB, file-rss:0kB\n")
        log.write(b"3,2,1001,-;NVRM: Xid (PCI:0000:01:00): 31, pid=1, name=" + name + b"\n")
    machine.count_oom_kill()
