"""memwatchd and what people use instead, each told to look at memory once a second and to answer on one port."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from subjects import HERE, Subject

COLLECTD = """
FQDNLookup false
Interval 1
BaseDir "{folder}"
PIDFile "{folder}/collectd.pid"
LoadPlugin memory
LoadPlugin swap
LoadPlugin vmem
LoadPlugin write_prometheus
<Plugin write_prometheus>
  Host "127.0.0.1"
  Port "{port}"
</Plugin>
"""
# Everything that is not memory is off, as far as it can be.
NETDATA = """
[global]
    run as user = root
[directories]
    cache = {folder}/cache
    lib = {folder}/lib
    log = {folder}/log
[db]
    mode = ram
    update every = 1
[ml]
    enabled = no
[web]
    bind to = 127.0.0.1
    default port = {port}
[plugins]
    apps = no
    cgroups = no
    charts.d = no
    ebpf = no
    go.d = no
    perf = no
    python.d = no
    slabinfo = no
    tc = no
    diskspace = no
    enable running new plugins = no
[registry]
    enabled = no
"""


def subjects(port: int, folder: Path) -> Iterator[Subject]:
    """Those that are installed here; whoever is not is named on stderr. `folder` holds their configurations."""
    memwatchd = Path(sys.executable).with_name("memwatchd")
    yield Subject("memwatchd", [str(memwatchd), "--listen", f"127.0.0.1:{port}", "--log-level", "error"])
    for subject in _peers(port, folder):
        if shutil.which(subject.argv[0]):
            yield subject
        else:
            print(f"{subject.name} is not here: {subject.argv[0]}", file=sys.stderr)


def _peers(port: int, folder: Path) -> Iterator[Subject]:
    exporter = ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    memory_only = [*exporter, "--collector.disable-defaults", "--collector.meminfo", "--collector.vmstat"]
    yield Subject("node_exporter, memory", [*memory_only, "--collector.pressure"])
    yield Subject("node_exporter, default", exporter)
    yield Subject("collectd, memory", ["collectd", "-f", "-C", _file(folder, "collectd", COLLECTD, port)])
    path = "/api/v1/allmetrics?format=prometheus"
    yield Subject("Netdata, /proc only", ["netdata", "-D", "-c", _file(folder, "netdata", NETDATA, port)], path)
    glances = ["glances", "-w", "--disable-webui", "-t", "1", "-B", "127.0.0.1", "-p", str(port)]
    yield Subject("Glances, its API", glances, "/api/3/mem")
    yield Subject(
        "prometheus_client + psutil, 30 lines", [sys.executable, str(HERE / "psutil_exporter.py"), str(port)]
    )
    constant = [sys.executable, "-S", "-E", str(HERE / "constant_answer.py"), str(port)]
    yield Subject("asyncio alone, always the same 8 KiB", constant, is_yardstick=True)


def _file(folder: Path, name: str, text: str, port: int) -> str:
    own = folder / name
    for part in ("cache", "lib", "log"):
        (own / part).mkdir(parents=True, exist_ok=True)
    file = own / f"{name}.conf"
    file.write_text(text.format(folder=own, port=port))
    return str(file)
