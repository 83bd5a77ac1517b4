"""A line of `tegrastats`, from JetPack 3 to 7, and the GPU's temperature, power and clocks in it.

Fields are recognized by name, never by position. Those that a release, a chip or a user without privileges does not
print are absent, and so is one that cannot be true or is not known: the others stay in use. A line without its
newline or without RAM is rejected as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from memwatch.core.drivers.tegra.records import Area, Load, TegrastatsReading
from memwatch.core.helper.codec import DecodeError
from memwatch.core.model import MIN_CELSIUS, Absent, Vitals

MAX_LINE_BYTES = 8192

_BLOCK = r"\(\s*lfb\s+[0-9]{1,7}(?:x[0-9]{1,7})?[kM][bB]\)"
_MHZ = r"[0-9]{1,5}"
_PERCENT = r"[0-9]{1,3}%"
_CORE = rf"(?:off|{_PERCENT}(?:@{_MHZ})?)"
_PLAIN_CORE = rf"(?:off|{_PERCENT})"
_CLOCKS = rf"@(?:{_MHZ}|\[{_MHZ}(?:,{_MHZ})*\])"
_LOAD = rf"(?:{_PERCENT}(?:{_CLOCKS})?|{_CLOCKS})"
_DEGREES = r"-?[0-9]{1,3}(?:\.[0-9]{1,6})?C"
_WATTS = r"-?[0-9]{1,7}"
_KNOWN = r"(?!(?:RAM|SWAP|IRAM|Carveout|GART|MTS|fg|bg|(?:GR3D2?|EMC)(?:_FREQ)?)\s)"
# Engines whose clock is printed without "@". Any other word before a bare number is a truncated rail.
_ENGINE = r"(?:[A-Z0-9]+_FREQ|APE|AVP|VIC|MSENC|NV(?:ENC|DEC|JPG)[0-9]*|OFA[0-9]*|SE[0-9]*|VI|ISP)"
_FIELD = re.compile(
    rf"""(?:
      (?P<time>\d\d-\d\d-\d{{4}}\s+\d\d:\d\d:\d\d)
    | (?P<ram>RAM\s+[0-9]{{1,8}}/[0-9]{{1,8}}MB\s*{_BLOCK})
    | (?P<swap>SWAP\s+[0-9]{{1,8}}/[0-9]{{1,8}}MB(?:\s*\(cached\s+[0-9]{{1,8}}MB\))?)
    | (?P<area>(?:IRAM|Carveout|GART)\s+[0-9]{{1,8}}/[0-9]{{1,8}}[kM]B(?:\s*{_BLOCK})?)
    | (?P<cpus>(?:CPU|cpu)\s*\[(?:{_CORE}(?:,{_CORE})*\]|{_PLAIN_CORE}(?:,{_PLAIN_CORE})*\]@{_MHZ}))
    | (?P<load>(?:GR3D2?|EMC)(?:_FREQ)?\s+(?:off|{_LOAD}))
    | (?P<mts>MTS\s+fg\s+{_PERCENT}\s+bg\s+{_PERCENT})
    | (?P<sensor>[A-Za-z][\w.-]*@{_DEGREES}(?:/{_DEGREES})*)
    | (?P<rail>{_KNOWN}[A-Za-z][\w.-]*\s+(?:{_WATTS}(?:/{_WATTS})+|{_WATTS}mW(?:/{_WATTS}mW)+))
    | (?P<engine>{_KNOWN}(?:[A-Za-z]\w*\s+(?:off|{_LOAD})|{_ENGINE}\s+{_MHZ}))
    )(?:\s+|$)""",
    re.VERBOSE | re.ASCII,
)
_SPACE = re.compile(r"\s+")
_MAPPINGS = ("areas", "engines", "temperatures_celsius", "rails_milliwatts")
# The board's vendor chose these names: AGX Orin has two rails NC (not connected). The first of each name counts.
_NOT_ALWAYS_APART = ("sensor", "rail")
_SIZES = {"k": 1 << 10, "M": 1 << 20}
_MHZ_IN_HERTZ = 1_000_000


def parse_line(data: bytes) -> TegrastatsReading:
    """Parse one line, including its newline. Raises `DecodeError` unless it is a line of tegrastats."""
    if not data.endswith(b"\n") or len(data) > MAX_LINE_BYTES:
        raise DecodeError(f"tegrastats: a line of {len(data)} bytes is truncated or too long: {data[:60]!r}")
    line = _LineFields()
    at, text = 0, data.decode("ascii", "replace").strip()
    is_odd = False  # in a part of the line that is no known field
    while at < len(text):
        field = _FIELD.match(text, at)
        if field is None:
            line.odd_fields += not is_odd
            is_odd, at = True, _next_word(text, at)
            continue
        is_odd = False
        try:
            line.add(str(field.lastgroup), field[0].rstrip())
        except DecodeError:
            line.odd_fields += 1
        at = field.end()
    if "RAM " not in text or line.is_empty:
        raise DecodeError(f"tegrastats: {text[:40]!r} has no field RAM, or nothing else that is known")
    return line.reading()


def _next_word(text: str, at: int) -> int:
    found = _SPACE.search(text, at)
    return found.end() if found else len(text)


class _LineFields:
    """Collects the fields of one line. `odd_fields`: number of those that are left out."""

    def __init__(self) -> None:
        self.odd_fields = 0
        self._found: dict[str, Any] = {place: {} for place in _MAPPINGS}

    @property
    def is_empty(self) -> bool:
        return not any(value for name, value in self._found.items() if name != "time")

    def add(self, kind: str, text: str) -> None:
        # A name such as `areas:IRAM` is an entry of the mapping `areas`.
        name, value = _READERS[kind](text)
        place, _, key = name.rpartition(":")
        fields = self._found[place] if place else self._found
        if key in fields and kind in _NOT_ALWAYS_APART:
            return
        if key in fields:
            raise DecodeError(f"tegrastats: {text[:40]!r} appears twice")
        fields[key] = value
        if kind == "ram":
            fields.update(value)

    def reading(self) -> TegrastatsReading:
        self._found.pop("ram", None)
        return TegrastatsReading(**self._found, odd_fields=self.odd_fields)


FieldValue = tuple[str, Any]


def _time(text: str) -> FieldValue:
    return "time", " ".join(text.split())


def _ram(text: str) -> FieldValue:
    area = _parse_area(text)
    blocks, _, size = text[text.index("lfb") + 3 :].rstrip(")").strip().rpartition("x")
    return "ram", {
        "ram_used_bytes": area.used_bytes,
        "ram_total_bytes": area.total_bytes,
        "largest_free_blocks": int(blocks or "1"),
        "largest_free_block_bytes": _parse_size(size),
    }


def _swap(text: str) -> FieldValue:
    return "swap", _parse_area(text)


def _area(text: str) -> FieldValue:
    return f"areas:{text.split(None, 1)[0]}", _parse_area(text)


def _parse_area(text: str) -> Area:
    """Parse an area such as `IRAM 0/252kB(lfb 252kB)`. Used and total have the same unit."""
    front, _, back = text.partition("(")
    used, _, total = front.split()[1].partition("/")
    unit = _SIZES[total[-2]]
    area = {"used_bytes": int(used) * unit, "total_bytes": int(total[:-2]) * unit}
    if area["used_bytes"] > area["total_bytes"]:
        raise DecodeError(f"tegrastats: {text[:40]!r} uses more than its total")
    key, _, size = back.rstrip(")").strip().partition(" ")
    if key == "cached":
        area["cached_bytes"] = _parse_size(size)
    elif key == "lfb":
        area["largest_free_block_bytes"] = _parse_size(size.rpartition("x")[2])
    return Area(**area)


def _parse_size(text: str) -> int:
    return int(text[:-2]) * _SIZES[text[-2]]


def _cpus(text: str) -> FieldValue:
    """Parse `CPU [2%@1190,off]`. Older versions print one clock for all cores: `cpu [17%,off]@408`."""
    cores, _, common = text[text.index("[") + 1 :].partition("]")
    return "cpus", tuple(_parse_load(core if core == "off" else core + common) for core in cores.split(","))


def _load(text: str) -> FieldValue:
    name, value = text.split()
    name = name.removesuffix("_FREQ").lower()
    return (name if name in ("gr3d", "emc") else f"engines:{name.upper()}"), _parse_load(value)


def _engine(text: str) -> FieldValue:
    name, value = text.split()
    return f"engines:{name.removesuffix('_FREQ')}", _parse_load(value)


def _parse_load(text: str) -> Load:
    """Parse `off`, `3%@76`, `63%@[621]`, `@[1000,1000]`, `0%`, or a bare clock."""
    if text == "off":
        return Load(is_on=False)
    percent, sign, clocks = text.partition("@")
    if not sign and not percent.endswith("%"):
        percent, clocks = "", percent
    hertz = tuple([int(clock) * _MHZ_IN_HERTZ for clock in clocks.strip("[]").split(",")]) if clocks else ()
    return Load(True, _parse_ratio(percent) if percent else Absent.NOT_AVAILABLE, hertz)


def _parse_ratio(percent: str) -> float:
    value = int(percent.rstrip("%"))
    if value > 100:
        raise DecodeError(f"tegrastats: {percent} is above 100%")
    return value / 100


def _mts(text: str) -> FieldValue:
    words = text.split()
    return "mts", (_parse_ratio(words[2]), _parse_ratio(words[4]))


def _sensor(text: str) -> FieldValue:
    name, _, degrees = text.partition("@")
    return f"temperatures_celsius:{name}", tuple([float(one.rstrip("C")) for one in degrees.split("/")])


def _rail(text: str) -> FieldValue:
    name, watts = text.split()
    return f"rails_milliwatts:{name}", tuple([int(one.removesuffix("mW")) for one in watts.split("/")])


_READERS: dict[str, Callable[[str], FieldValue]] = {
    "time": _time,
    "ram": _ram,
    "swap": _swap,
    "area": _area,
    "cpus": _cpus,
    "load": _load,
    "mts": _mts,
    "sensor": _sensor,
    "rail": _rail,
    "engine": _engine,
}


# The GPU's sensor is missing while its rail is off (Thor); `tj` is the hottest place of the chip.
SENSORS = ("gpu", "tj")
# The GPU's own rail, then those that it shares with other parts of the chip. AGX Orin has one for GPU and SOC, Orin
# NX and Nano have one for CPU, GPU and CV.
RAILS = ("vdd_gpu", "gpu", "vdd_sys_gpu", "pom_5v_gpu", "vdd_gpu_soc", "vdd_cpu_gpu_cv")
_MILLIWATTS = 1000


def read_vitals(line: TegrastatsReading) -> Vitals:
    """Return what the line has. tegrastats prints no reasons for lower clocks."""
    return Vitals(
        temperature_celsius=_temperature(line.temperatures_celsius),
        power_watts=_power(line.rails_milliwatts),
        clock_hertz=_clocks(line),
    ).checked()


def find_rail(rails: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the name of the rail that feeds the GPU, None if no rail is known to."""
    names = {name.lower(): name for name in rails}
    return next((names[rail] for rail in RAILS if rail in names), None)


def _temperature(sensors: Mapping[str, tuple[float, ...]]) -> float | Absent:
    by_name = {name.lower(): values[0] for name, values in sensors.items()}
    found = [by_name[name] for name in SENSORS if by_name.get(name, MIN_CELSIUS) > MIN_CELSIUS]
    return found[0] if found else Absent.NOT_AVAILABLE


def _power(rails: Mapping[str, tuple[int, ...]]) -> float | Absent:
    """Return the current power. A rail that is off may read below 0, which is no power."""
    rail = find_rail(rails)
    return Absent.NOT_AVAILABLE if rail is None else rails[rail][0] / _MILLIWATTS


def _clocks(line: TegrastatsReading) -> Mapping[str, int] | Absent:
    """Return the clock of the GPU's fastest part, and of the memory controller."""
    loads = {"graphics": line.gr3d, "memory": line.emc}
    known = {name: max(load.hertz) for name, load in loads.items() if isinstance(load, Load) and load.hertz}
    return known or Absent.NOT_AVAILABLE
