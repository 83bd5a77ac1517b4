"""Adapters: how each tool is started, and which of its figures is meant. README.md says how to add one.

A parser returns what the tool itself shows, in bytes, under the name of the figure. It adds nothing up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from conformance.rules import Answer

Answers = Mapping[str, Answer]
Parser = Callable[[str], Answers]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SCRIPTS = Path(__file__).parent / "scripts"
# The runner puts the Python with the tools, the programs of this environment and the job's folder in their place.
PYTHON, BIN, SCRATCH = "{python}", "{bin}", "{scratch}"


@dataclass(frozen=True)
class Tool:
    """One tool. `home`: the environment with it; `package`: its name there; `needs`: further packages of Debian.

    `file`: its configuration, as tool.conf in the job's folder. An answer is read once it matches `until`, and
    `settle_seconds` later, so that a tool may read twice what it shows as a difference.
    """

    name: str
    home: Literal["pip", "debian", "host", "ours"]
    package: str
    command: Sequence[str]
    parse: Parser
    ask: Literal["stdout", "http", "screen"] = "stdout"
    addresses: Sequence[str] = ()
    until: str = "."
    file: str = ""
    needs: Sequence[str] = ()
    settle_seconds: float = 2.0


@dataclass(frozen=True)
class NotRun:
    """A tool that cannot be run over a machine's folder, and the reason."""

    name: str
    reason: str


def bytes_of(figures: Mapping[str, Any], step: float = 0) -> Answers:
    """Return the answers that are numbers: a tool that has no value there has no answer."""
    return {key: Answer(float(one), step) for key, one in figures.items() if isinstance(one, int | float)}


def parse_own_json(text: str) -> Answers:
    """Read the last line of a script in scripts/, which prints the names of the figures."""
    return bytes_of(json.loads(text.strip().splitlines()[-1]))


def parse_gpustat(text: str) -> Answers:
    found: dict[str, Any] = {}
    for gpu in json.loads(text)["gpus"]:
        name = f"gpu{gpu['index']}"
        found |= {f"{name}.size": mib(gpu["memory.total"]), f"{name}.used": mib(gpu["memory.used"])}
        for one in gpu["processes"] or ():
            found[f"{name}.process.{one['pid']}"] = mib(one["gpu_memory_usage"])
    return bytes_of(found, MIB)


def mib(value: float | None) -> float | None:
    return None if value is None else value * MIB


def parse_nvtop(text: str) -> Answers:
    """nvtop: a bar `MEM[used/total]` for each device, and a row for each process: its -s has no bytes."""
    found: dict[str, str | None] = {}
    for number, bar in enumerate(re.findall(r"MEM\[[^\]]*\]", text)):
        shown = re.search(r"([\d.]+[KMGT]i)/([\d.]+[KMGT]i)\]", bar)
        found |= {f"gpu{number}.used": shown and shown[1], f"gpu{number}.size": shown and shown[2]}
    row = r"^ *(\d+) +\S+ +(\d+) +(?:Compute|Graphic|Both\S*)(?: G\+C)? +(?:\d+ ?%|N/A) +(\d+MiB)"
    for pid, device, held in re.findall(row, text, re.MULTILINE):
        found[f"gpu{device}.process.{pid}"] = held
    return amounts(found)


def parse_glances(text: str) -> Answers:
    """glances --stdout-json: an object with a part for each plug-in. GPU memory is a percentage."""
    plugins = json.loads(text.strip().splitlines()[-1])
    memory, swap = plugins.get("mem", {}), plugins.get("memswap", {})
    sizes = {
        "ram.size": memory.get("total"),
        "ram.available": memory.get("available"),
        "ram.used": memory.get("used"),
        "ram.free": memory.get("free"),
        "swap.size": swap.get("total"),
        "swap.used": swap.get("used"),
    }
    ratios = {
        f"gpu{number}.used_ratio": one["mem"] / 100
        for number, one in enumerate(plugins.get("gpu", ()))
        if isinstance(one.get("mem"), int | float)
    }
    return {**bytes_of(sizes), **bytes_of(ratios, 0.01)}


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name, labels and value of each line of a Prometheus exposition."""
    for line in text.splitlines():
        found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)(?: \d+)?", line)
        if found:
            yield found[1], dict(re.findall(r'(\w+)="([^"]*)"', found[2] or "")), float(found[3])


def parse_node_exporter(text: str) -> Answers:
    found = {name: value for name, _, value in samples("\n".join(json.loads(text)))}
    return bytes_of(
        {
            "ram.size": found.get("node_memory_MemTotal_bytes"),
            "ram.available": found.get("node_memory_MemAvailable_bytes"),
            "ram.free": found.get("node_memory_MemFree_bytes"),
            "swap.size": found.get("node_memory_SwapTotal_bytes"),
        }
    )


def parse_collectd(text: str) -> Answers:
    lines = list(samples("\n".join(json.loads(text))))
    memory = {one.get("memory"): value for name, one, value in lines if name == "collectd_memory"}
    swap = {one.get("swap"): value for name, one, value in lines if name == "collectd_swap"}
    return bytes_of({"ram.used": memory.get("used"), "ram.free": memory.get("free"), "swap.used": swap.get("used")})


def parse_netdata(text: str) -> Answers:
    charts = json.loads(json.loads(text)[0])
    values = {
        (chart, one["name"]): one["value"]
        for chart, found in charts.items()
        for one in found["dimensions"].values()
    }
    figures = {
        "ram.used": ("system.ram", "used"),
        "ram.free": ("system.ram", "free"),
        "ram.available": ("mem.available", "avail"),
        "swap.used": ("system.swap", "used"),
    }
    return bytes_of({key: mib(values.get(where)) for key, where in figures.items()}, MIB)


def parse_free(text: str) -> Answers:
    rows = {line.split(":")[0]: [int(one) for one in line.split()[1:]] for line in text.splitlines()[1:]}
    total, used, free, _, _, available = rows["Mem"]
    return bytes_of(
        {
            "ram.size": total,
            "ram.used": used,
            "ram.free": free,
            "ram.available": available,
            "swap.size": rows["Swap"][0],
            "swap.used": rows["Swap"][1],
        }
    )


def amount(text: str) -> tuple[float, float] | None:
    """Return bytes and the step of the last digit, of an amount such as `77.4G` or `121 GiB`."""
    found = re.search(r"(\d+)(?:\.(\d+))? ?([KMGT])i?B?", text)
    if not found:
        return None
    unit = {"K": KIB, "M": MIB, "G": GIB, "T": GIB << 10}[found[3]]
    decimals = len(found[2] or "")
    return float(f"{found[1]}.{found[2] or 0}") * unit, unit / 10**decimals


AMOUNT = r"[\d.]+ [KMGT]iB"


def amounts(figures: Mapping[str, str | None]) -> Answers:
    read = {key: amount(text) for key, text in figures.items() if text}
    return {key: Answer(*one) for key, one in read.items() if one}


def parse_htop(text: str) -> Answers:
    memory = re.search(r"Mem\[\W*([\d.]+[KMGT])/([\d.]+[KMGT])\]", text)
    swap = re.search(r"Swp\[\W*([\d.]+[KMGT]?)/([\d.]+[KMGT])\]", text)
    return amounts(
        {
            "ram.used": memory and memory[1],
            "ram.size": memory and memory[2],
            "swap.used": swap and swap[1],
            "swap.size": swap and swap[2],
        }
    )


def parse_btop(text: str) -> Answers:
    """btop: the boxes of memory and of one GPU. A frame is drawn through the lines with the figures."""
    text = text.replace("─", " ")
    names = {"Total": "ram.size", "Used": "ram.used", "Available": "ram.available", "Free": "ram.free"}
    shown = {names[key]: one for key, one in re.findall(rf"(?m)^[│├] +?(\w+): +({AMOUNT})", text) if key in names}
    gpu = re.search(rf"vram.*?Used: +({AMOUNT})[^\n]*\n.*?Total: +({AMOUNT})", text)
    return amounts({**shown, **({"gpu0.used": gpu[1], "gpu0.size": gpu[2]} if gpu else {})})


def parse_memwatchd(text: str) -> Answers:
    metrics, snapshot = json.loads(text)
    found: dict[str, Answer] = {}
    for name, labels, value in samples(metrics):
        pool, device, kind = labels.get("pool"), labels.get("device"), labels.get("kind")
        if name.startswith("memwatch_pool_") and kind == "system_ram":
            key = name.removeprefix("memwatch_pool_").removesuffix("_bytes")
            found[f"ram.{key}"] = Answer(value)
        elif name in ("memwatch_pool_size_bytes", "memwatch_pool_used_bytes") and device:
            found[f"{pool}.{name.split('_')[2]}"] = Answer(value)
            if kind == "carveout":
                found[f"{pool}.carveout.{name.split('_')[2]}"] = Answer(value)
        elif name == "memwatch_share_used_bytes" and kind in ("cuda_pool", "gpu_buffers"):
            found[f"{device}.used"] = Answer(value, within=labels["within"])
        elif name == "memwatch_share_used_bytes" and kind == "gtt":
            found[f"{device}.gtt.used"] = Answer(value, within=labels["within"])
        elif name in ("memwatch_swap_size_bytes", "memwatch_swap_used_bytes"):
            found[f"swap.{name.split('_')[2]}"] = Answer(value)
    return {**found, **held(json.loads(snapshot))}


def held(snapshot: Mapping[str, Any]) -> Answers:
    """Return the device bytes of each process in a snapshot of memwatchd."""
    device_of = {one["id"]: one["device"] for one in snapshot["shares"] if one.get("device")}
    return {
        f"{device_of.get(place, place)}.process.{one['pid']}": Answer(value)
        for one in snapshot["processes"]
        for place, value in one["device_bytes"].items()
        if isinstance(value, int | float)
    }


COLLECTD = """
FQDNLookup false
Interval 1
BaseDir "{scratch}"
PIDFile "{scratch}/collectd.pid"
LoadPlugin memory
LoadPlugin swap
<Plugin swap>
  ReportBytes true
</Plugin>
LoadPlugin write_prometheus
<Plugin write_prometheus>
  Host "127.0.0.1"
  Port "9103"
</Plugin>
"""
NETDATA = """
[global]
    run as user = root
[directories]
    cache = {scratch}
    lib = {scratch}
    log = {scratch}
[db]
    mode = ram
    update every = 1
[ml]
    enabled = no
[web]
    bind to = 127.0.0.1
[plugins]
    enable running new plugins = no
    apps = no
    cgroups = no
    go.d = no
    python.d = no
    ebpf = no
[registry]
    enabled = no
"""

TOOLS: Sequence[Tool] = (
    Tool(
        "memwatchd",
        "ours",
        "memwatchd",
        [f"{BIN}/memwatchd", "--listen", "127.0.0.1:6360", "--state-dir", SCRATCH],
        parse_memwatchd,
        ask="http",
        addresses=("http://127.0.0.1:6360/metrics", "http://127.0.0.1:6360/api/v1/snapshot"),
        until=r'(?s)\A(?!.*"state": ?"starting")(?=.*\nmemwatch_pool_used_bytes)',
    ),
    Tool("psutil", "pip", "psutil", [PYTHON, str(SCRIPTS / "psutil_figures.py")], parse_own_json),
    Tool("nvidia-ml-py", "pip", "nvidia-ml-py", [PYTHON, str(SCRIPTS / "nvml_figures.py")], parse_own_json),
    Tool("gpustat", "pip", "gpustat", [f"{BIN}/gpustat", "--json", "--show-pid"], parse_gpustat),
    Tool("nvitop", "pip", "nvitop", [PYTHON, str(SCRIPTS / "nvitop_figures.py")], parse_own_json),
    Tool(
        "Glances",
        "pip",
        "glances",
        [f"{BIN}/glances", "--stdout-json", "mem,memswap,gpu", "--stop-after", "2", "-t", "1"],
        parse_glances,
    ),
    Tool("nvtop", "debian", "nvtop", ["nvtop"], parse_nvtop, ask="screen", until=r"MEM\[.*\]"),
    Tool(
        "btop",
        "debian",
        "btop",
        ["btop", "--force-utf", "--config", f"{SCRATCH}/tool.conf"],
        parse_btop,
        ask="screen",
        until=r"Total:\s+[\d.]+ [KMGT]iB",
        file='shown_boxes = "cpu mem gpu0"\n',
    ),
    Tool("htop", "debian", "htop", ["htop", "-C"], parse_htop, ask="screen", until=r"Mem\[[^\]]*\]"),
    Tool("free", "debian", "procps", ["free", "-b"], parse_free),
    Tool(
        "node_exporter",
        "debian",
        "prometheus-node-exporter",
        [
            "prometheus-node-exporter",
            "--web.listen-address=127.0.0.1:9100",
            "--collector.disable-defaults",
            "--collector.meminfo",
            "--collector.vmstat",
        ],
        parse_node_exporter,
        ask="http",
        addresses=("http://127.0.0.1:9100/metrics",),
        until="node_memory_MemTotal_bytes",
    ),
    Tool(
        "collectd",
        "debian",
        "collectd-core",
        ["collectd", "-f", "-C", f"{SCRATCH}/tool.conf"],
        parse_collectd,
        ask="http",
        addresses=("http://127.0.0.1:9103/metrics",),
        until="(?s)(?=.*collectd_memory)(?=.*collectd_swap)",
        file=COLLECTD,
        needs=("libmicrohttpd12t64", "libprotobuf-c1"),
    ),
    Tool(
        "Netdata",
        "host",
        "netdata-core",
        ["netdata", "-D", "-c", f"{SCRATCH}/tool.conf"],
        parse_netdata,
        ask="http",
        addresses=("http://127.0.0.1:19999/api/v1/allmetrics?format=json",),
        until=r'(?s)"system.ram".{0,400}?"free",\s*"value": ?[1-9]',
        file=NETDATA,
    ),
)
NOT_RUN = (
    NotRun("jtop (jetson-stats)", "it has no adapter yet: its figures come from a daemon on the Jetson"),
    NotRun("all-smi, amdgpu_top, dcgm-exporter", "in none of PyPI, npm and Debian"),
    NotRun("nvidia-smi, tegrastats, amd-smi", "they come with the drivers, which the machines do not have"),
)
