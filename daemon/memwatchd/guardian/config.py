"""Settings of the guardian in one small record, which its process gets without the modules that read them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from memwatchd.guardian.own_reading import Adjustment
from memwatchd.guardian.records import Limits

MAX_CONFIG_BYTES = 1 << 20


class Config(Struct, frozen=True):
    """`daemon`: its URL, `unix:PATH` or `http://127.0.0.1:PORT`. `warnings` are for the log at the start."""

    limits: Limits = Limits()
    dry_run: bool = True
    hook: tuple[str, ...] = ()
    daemon: str = "unix:/run/memwatchd/memwatchd.sock"
    procfs: str = "/proc"
    sysfs: str = "/sys"
    state_dir: str = "/var/lib/memwatchd-guardian"
    run_dir: str = "/run/memwatchd-guardian"
    adjustment: Adjustment = Adjustment()
    warnings: tuple[str, ...] = ()

    @property
    def proc(self) -> Path:
        return Path(self.procfs)


def send(config: Config) -> int:
    """Return an inheritable descriptor from which a new program reads the settings."""
    fd = os.memfd_create("guardian", 0)
    os.write(fd, msgspec.json.encode(config))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def receive(fd: int) -> Config:
    """Read settings and close the descriptor."""
    with open(fd, "rb") as file:
        return msgspec.json.decode(file.read(MAX_CONFIG_BYTES), type=Config)
