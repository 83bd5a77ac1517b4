"""memwatchd and its alternatives, each configured to read memory once a second, each on its own port."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from subjects import HERE, Subject

from support.free_ports import free_port

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
MEMORY_ONLY = (
    "--collector.disable-defaults",
    "--collector.meminfo",
    "--collector.vmstat",
    "--collector.pressure",
)
# Everything except memory is disabled, as far as possible.
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


def subjects(folder: Path) -> Iterator[Subject]:
    """Yield the installed programs and name the missing ones on stderr. `folder` holds their configurations."""
    port = free_port()
    memwatchd = Path(sys.executable).with_name("memwatchd")
    yield Subject("memwatchd", port, [str(memwatchd), "--listen", f"127.0.0.1:{port}", "--log-level", "error"])
    for subject in _peers(folder):
        if shutil.which(subject.argv[0]):
            yield subject
        else:
            print(f"{subject.name} is not installed: {subject.argv[0]}", file=sys.stderr)


def _peers(folder: Path) -> Iterator[Subject]:
    for name, options in (("memory", MEMORY_ONLY), ("default", ())):
        port = free_port()
        exporter = ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        yield Subject(f"node_exporter, {name}", port, [*exporter, *options])
    port = free_port()
    yield Subject("collectd, memory", port, ["collectd", "-f", "-C", _file(folder, "collectd", COLLECTD, port)])
    port = free_port()
    netdata = ["netdata", "-D", "-c", _file(folder, "netdata", NETDATA, port)]
    yield Subject("Netdata, /proc only", port, netdata, "/api/v1/allmetrics?format=prometheus")
    port = free_port()
    glances = ["glances", "-w", "--disable-webui", "-t", "1", "-B", "127.0.0.1", "-p", str(port)]
    yield Subject("Glances, its API", port, glances, "/api/3/mem")
    port = free_port()
    exporter = [sys.executable, str(HERE / "psutil_exporter.py"), str(port)]
    yield Subject("prometheus_client + psutil, 30 lines", port, exporter)
    port = free_port()
    constant = [sys.executable, "-S", "-E", str(HERE / "constant_answer.py"), str(port)]
    yield Subject("asyncio alone, always the same 8 KiB", port, constant, is_baseline=True)


def _file(folder: Path, name: str, text: str, port: int) -> str:
    own = folder / name
    for part in ("cache", "lib", "log"):
        (own / part).mkdir(parents=True, exist_ok=True)
    file = own / f"{name}.conf"
    file.write_text(text.format(folder=own, port=port))
    return str(file)
