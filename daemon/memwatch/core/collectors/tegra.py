"""Jetson and other Tegra boards: names of board and chip, and GPU memory in System RAM. Needs no privileges."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.drivers.tegra.board import AUTO, SOME_TEGRA, TegraOptions, detect_soc, find_sign, parse_release
from memwatch.core.drivers.tegra.nvmap import parse_meminfo
from memwatch.core.drivers.tegra.records import TegraReading
from memwatch.core.findings import Findings
from memwatch.core.helper.codec import DecodeError
from memwatch.core.linux.device_tree import device_tree
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable, kept_file, read_once
from memwatch.core.model import Absent
from memwatch.core.printable import decode


class Collector(BaseCollector):
    """Reads the names of board and release once, and the memory on every tick."""

    name = "tegra"
    period_seconds: float = 0.0
    may_block = False
    options: type[TegraOptions] = TegraOptions

    def __init__(self, roots: Roots, board: str = AUTO) -> None:
        """`board`: the chip, if the device tree is not visible, as in most containers."""
        soc = detect_soc(roots, board)
        if soc is None:
            raise SourceUnavailable("no Tegra: /proc/device-tree/compatible does not name one")
        model = decode(device_tree(roots, "model").split(b"\0")[0].strip())
        l4t, jetpack = parse_release(read_once(roots.rootfs / "etc/nv_tegra_release"))
        sign = find_sign(roots) if soc == SOME_TEGRA else None
        self._board = TegraReading(soc, model or Absent.NOT_AVAILABLE, l4t, jetpack, sign=sign or "")
        self._meminfo = kept_file(roots.procfs / "meminfo")

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.options_for(TegraOptions).board)

    def collect(self) -> Findings:
        try:
            memory = parse_meminfo(self._meminfo.read())
        except DecodeError as error:
            raise ParseError(str(error)) from None
        return Findings(tegra=replace(self._board, gpu_bytes=memory.used_bytes, free_bytes=memory.free_bytes))

    def close(self) -> None:
        self._meminfo.close()
