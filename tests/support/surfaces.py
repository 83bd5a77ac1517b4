"""The surfaces of memwatchd: the cells (`support.one_answer`) that each shows of a machine.

`HTTP` are read from a daemon's answers. The others are rendered from its JSON, as their programs do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from memwatch.cli import home_assistant, status
from memwatch.cli.terminal.moment import share_label
from memwatch.core.backends.devices import UNIFIED
from memwatch.core.backends.finder import build_backends
from memwatch.core.backends.model import Backends
from memwatch.core.backends.probes import ProbeResults
from memwatch.core.model import Absent, Device, Pool, find_system_ram
from memwatch.core.snapshot import Snapshot
from memwatch.core.snapshot_json import snapshot_from
from memwatch.core.wire import ABSENT, reasons_in, to_bytes
from memwatch.library import machine as library_machine
from memwatch.library import wait as library_wait
from memwatch.library.daemon_client import Daemon
from memwatch.library.host import Host, Ram
from memwatch.library.machine import get_device_memory_bytes, is_unified_memory_gpu, memory_info
from memwatch.library.machine_record import Machine, MemoryInfo, decode_backends, decode_machine, from_snapshot
from memwatch.library.wait import wait_for
from memwatch.reporting.render.json import WIRE
from memwatch_monitor.neighbours.tick import build_tick, decode_tick, encode_tick
from memwatchd.otlp import Span, build_payload
from support.one_answer import CPU, MACHINE, Cell, Cells, Range, Shown, is_same, truth, whole_of

Json = Any


class View(Struct, frozen=True):
    """A machine as a client sees it: `get` returns the body of an answer of its daemon.

    `alone`: the machine as the library reads it without a daemon; None for a machine without files.
    """

    snapshot: Snapshot
    get: Callable[[str], str]
    alone: Snapshot | None = None

    def json(self, path: str) -> Json:
        return json.loads(self.get(path))


Surface = Callable[[View], Cells]


def figure(record: Mapping[str, Json], field: str) -> Json:
    """Return a figure of a JSON object, or the reason for its absence. A null without one is a difference."""
    return reasons_in(record).get(field) if record[field] is None else record[field]


def cells_of(kind: str, record: Json, **fields: str) -> Cells:
    """Return cells of an object: `fields` are quantities by field of its JSON."""
    return {Cell(kind, quantity.replace("_", " ")): figure(record, field) for quantity, field in fields.items()}


def json_pools(pools: Iterable[Json]) -> Cells:
    found: Cells = {}
    for one in pools:
        found |= cells_of(one["id"], one, size="size_bytes", used="used_bytes", available="available_bytes")
    return found


def json_shares(shares: Iterable[Json]) -> Cells:
    found: Cells = {}
    for one in shares:
        found |= cells_of(one["id"], one, share_used="used_bytes", limit="limit_bytes")
    return found


def json_headroom(name: str, record: Json) -> Cells:
    return cells_of(name, record, headroom="headroom_bytes", after_reclaim="headroom_after_reclaim_bytes")


def json_devices(devices: Iterable[Json]) -> Cells:
    found: Cells = {}
    for one in devices:
        found |= json_headroom(one["id"], one) | {Cell(one["id"], "architecture"): one["architecture"]}
    return found


def json_processes(processes: Iterable[Json]) -> Cells:
    found: Cells = {}
    for one in processes:
        low, high = figure(one, "footprint_low_bytes"), figure(one, "footprint_high_bytes")
        found[Cell(str(one["pid"]), "footprint")] = Range(low, high) if low != high else low
        held = one["device_bytes"]
        found |= {Cell(f"{one['pid']}/{place}", "held"): figure(held, place) for place in held if place != ABSENT}
    return found


def json_machine(machine: Json) -> Cells:
    return cells_of(MACHINE, machine, name="name", architecture="architecture")


def snapshot_json(view: View) -> Cells:
    return snapshot_cells(view.get("/api/v1/snapshot"))


def snapshot_cells(text: str) -> Cells:
    found = json.loads(text)
    parts = json_pools(found["pools"]) | json_shares(found["shares"]) | json_devices(found["devices"])
    return parts | json_processes(found["processes"]) | json_machine(found["machine"])


def parts_json(view: View) -> Cells:
    get = view.json
    found = json_pools(get("/api/v1/pools")) | json_shares(get("/api/v1/shares"))
    return found | json_devices(get("/api/v1/devices")) | json_processes(get("/api/v1/processes"))


METRICS = {
    "memwatch_pool_size_bytes": ("pool", "size"),
    "memwatch_pool_used_bytes": ("pool", "used"),
    "memwatch_pool_available_bytes": ("pool", "available"),
    "memwatch_share_used_bytes": ("share", "share used"),
    "memwatch_share_limit_bytes": ("share", "limit"),
    "memwatch_device_headroom_bytes": ("device", "headroom"),
    "memwatch_device_headroom_after_reclaim_bytes": ("device", "after reclaim"),
}


def metrics_of(samples: Iterable[tuple[str, Mapping[str, str], float]]) -> Cells:
    found: Cells = {}
    for name, labels, value in samples:
        if name in METRICS:
            kind, quantity = METRICS[name]
            found[Cell(labels[kind], quantity)] = int(value)
        elif name == "memwatch_device_info":
            found[Cell(labels["device"], "architecture")] = labels["architecture"]
        elif name == "memwatch_machine_info":
            found[Cell(MACHINE, "architecture")] = labels["memory"]
            if labels.get("model"):
                found[Cell(MACHINE, "name")] = labels["model"]
        elif name == "memwatch_process_device_bytes":
            found[Cell(f"{labels['pid']}/{labels['within']}", "held")] = int(value)
    return found


def metrics(view: View) -> Cells:
    families = text_string_to_metric_families(view.get("/metrics"))
    return metrics_of((one.name, one.labels, one.value) for family in families for one in family.samples)


def otlp(view: View) -> Cells:
    """Return what is pushed by OTLP, under the names of /metrics."""
    return metrics_of(otlp_points(view))


def otlp_points(view: View) -> Iterator[tuple[str, Mapping[str, str], float]]:
    from opentelemetry.sdk.metrics.export import NumberDataPoint

    families = text_string_to_metric_families(view.get("/metrics"))
    for metric in build_payload(families, Span(0, 1), {}, {}).resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            if isinstance(point, NumberDataPoint):
                yield metric.name, {name: str(word) for name, word in (point.attributes or {}).items()}, point.value


CONVENTIONAL = {
    "hw.gpu.memory.limit": "size",
    "hw.gpu.memory.usage": "used",
    "system.memory.limit": "size",
    "system.memory.linux.available": "available",
}


def otlp_conventions(view: View) -> Cells:
    """Return what is pushed by OTLP, under the conventional names. System RAM has no id there."""
    found: Cells = {}
    for name, labels, value in otlp_points(view):
        if name in CONVENTIONAL:
            found[Cell(labels.get("hw.id", "ram"), CONVENTIONAL[name])] = int(value)
        elif name == "system.memory.usage" and labels["system.memory.state"] == "used":
            found[Cell("ram", "used")] = int(value)
    return found


# A figure on a page: its bytes and its text, the reason for its absence, or the bounds of a range.
FIGURE = re.compile(
    r'<data[^>]* value="(?P<bytes>\d+)"[^>]*>(?:<b>)?(?P<text>[^<]*)(?:</b>)?</data>'
    r'|<span class="absent"[^>]*>(?P<absent>[^<]*)</span>'
    r'|<span class="figure range"[^>]*>(?P<range>(?:[^<]|<span>|</span>(?= <span>))*</span>)</span>'
    r'|<span class="figure[^"]*"[^>]*>(?P<words>[^<]*)</span>'
)


def figures_in(html: str) -> list[Any]:
    return [_figure(match) for match in FIGURE.finditer(html)]


def _figure(match: re.Match[str]) -> Any:
    if match["bytes"]:
        return Shown(int(match["bytes"]), plain(match["text"]))
    return plain(match["absent"] or match["range"] or match["words"]).removeprefix("— ")


def plain(html: str) -> str:
    """Return the text of a piece of a page."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", html)).split())


def blocks(html: str, tag: str, id_prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the rest of the id, and the content, of each element of a kind that contains none of its kind."""
    for match in re.finditer(rf'<{tag}[^>]* id="{id_prefix}([^"]*)"[^>]*>(.*?)</{tag}>', html, re.DOTALL):
        yield unescape(match[1]), match[2]


def fact(html: str, name: str) -> list[Any]:
    """Return the figures of a fact: `<dt>name</dt><dd>…</dd>`."""
    match = re.search(rf"<dt>{name}</dt><dd>(.*?)</dd>", html, re.DOTALL)
    return figures_in(match[1]) if match else []


def overview(view: View) -> Cells:
    html, snapshot = view.get("/"), view.snapshot
    known = truth(snapshot)
    found = lone_size(html, snapshot) | head_of(html)
    more = [status_use(html, snapshot), status_room(html, snapshot)]
    for name, tower in blocks(html, "article", "pool-"):
        more += [as_of(name, one, snapshot) for one in (tower_head(name, tower), *pictures(name, tower, snapshot))]
    for name, row in blocks(html, "li", "share-"):
        label, _, limit = row.partition(">· limit<")
        more.append(named(name, ("share used", "limit"), [*figures_in(label)[:1], *figures_in(limit)[:1]]))
    for name, row in blocks(html, "tr", "who-"):
        more.append({Cell(name.rpartition("-")[0], "footprint"): figures_in(row)[0]})
    for one in more:
        found |= once_more(found, one, known)
    return found


def once_more(found: Cells, more: Cells, known: Cells) -> Cells:
    """Return what a page shows at another place: of a figure that it shows twice, the one that is not true."""
    return {
        cell: value
        for cell, value in more.items()
        if cell not in found or not is_same(known.get(cell), value, whole_of(cell, known))
    }


def as_of(name: str, found: Cells, snapshot: Snapshot) -> Cells:
    """Return the figures of a tower, which is a limit where that is all that is known of a GPU's memory."""
    if name not in {share.id for share in snapshot.shares}:
        return found
    # What is left of a limit follows from the other two.
    quantities = {"size": "limit", "used": "share used", "available": ""}
    renamed = {
        Cell(cell.object, quantities[cell.quantity] if cell.object == name else cell.quantity): value
        for cell, value in found.items()
    }
    return {cell: value for cell, value in renamed.items() if cell.quantity}


def named(name: str, quantities: tuple[str, ...], values: list[Any]) -> Cells:
    return {Cell(name, quantity): value for quantity, value in zip(quantities, values, strict=False)}


def status_use(html: str, snapshot: Snapshot) -> Cells:
    """Return the use in the status line: of a pool, or of a share."""
    match = re.search(r'"status-label">used of (.*?)</p>(.*?)"status-beside">of (.*?)(?: · |</p>)', html, re.DOTALL)
    if match is None:
        return {}
    label, values = plain(match[1]), [*figures_in(match[2])[:1], plain(match[3]).removeprefix("— ")]
    for pool in snapshot.pools:
        if pool.label == label:
            return named(pool.id, ("used", "size"), values)
    (share,) = (one for one in snapshot.shares if one.label == label)
    return named(share.id, ("share used", "limit"), values)


def lone_size(html: str, snapshot: Snapshot) -> Cells:
    """Return the size of the only pool of a machine, which is in the title of the picture."""
    match = re.search(r'id="landscape-label">(.*?) <span class="of">(.*?)</span></h2>', html, re.DOTALL)
    sizes = {pool.label: pool.id for pool in snapshot.pools}
    name = sizes.get(plain(match[1])) if match else None
    return {Cell(name, "size"): plain(match[2]).partition(", ")[0]} if match and name else {}


def tower_head(name: str, tower: str) -> Cells:
    """Return the figures in words of a pool: above its picture, or below it if it lies on its side."""
    head, _, body = tower.partition("</header>")
    found: Cells = {}
    if size := re.search(r'<span class="of">([^<]*?)(?: ⊂ [^<]*)?</span></h3>', head):
        found |= {Cell(name, "size"): plain(size[1])}
    if size := re.search(r"<p>([^<]*), drawn ×", head):
        found |= {Cell(name, "size"): plain(size[1])}
    cell = re.search(r'<h3>.*?<a href="devices">.*</h3>\s*<p><b>([^<]*?)(?: of ([^<]*))?</b>', head, re.DOTALL)
    if cell:
        found[Cell(name, "used")] = plain(cell[1]).removeprefix("— ")
        beside = re.search(r'<span class="tower-ratio">(.*?)</span>', head)
        found[Cell(name, "size")] = plain(cell[2] or (beside[1] if beside else ""))
    if left := re.search(r"<p>([\d.,]+ \w+) left<", head):
        found[Cell(name, "available")] = left[1]
    if left := re.search(r"<b>([\d.,]+ \w+) available</b>", tower):
        found[Cell(name, "available")] = left[1]
    for missing in re.findall(r'<p class="no-figure">(.*?)</p>', body, re.DOTALL):
        found |= named(name, ("used",), figures_in(missing)[:1])
    return found


def pictures(name: str, tower: str, snapshot: Snapshot) -> Iterator[Cells]:
    """Yield the figures in each picture of a pool: the page has one for each width of a window."""
    for one in re.split(r'<svg class="(?=now|band|loupe)', tower)[1:]:
        yield picture(name, one, snapshot)


def picture(name: str, tower: str, snapshot: Snapshot) -> Cells:
    """Return the figures in the picture of a pool as it is now: its words, and the titles of its boxes."""
    found: Cells = {}
    words = [plain(text) for text in re.findall(r"<text[^>]*>(.*?)</text>", tower, re.DOTALL)]
    for text in words:
        if use := re.fullmatch(r"used ([\d.,]+ \w+) · .*", text):
            found[Cell(name, "used")] = use[1]
        elif use := re.fullmatch(r"(?:.* )?([\d.,]+(?: \w+)?) of ([\d.,]+ \w+)(?:, at .*)?", text):
            found |= named(name, ("used", "size"), list(use.groups()))
    labels = {one.label: one.id for one in snapshot.shares}
    slices = {one.label.rpartition(" ")[2]: one.id for one in snapshot.shares if one.within == name}
    within = ""
    for kind, title in re.findall(r'<rect class="b-([\w-]+)"[^>]*><title>(.*?)</title>', tower, re.DOTALL):
        label, _, size = plain(title).rpartition(": ")
        if kind.startswith("slice"):
            within = slices[label.rpartition(" ")[2]]
            found[Cell(within, "limit")] = size
        elif within and label == "used":
            found[Cell(within, "share used")] = size
        elif kind in ("devices", "devices-family") and label in labels:
            found[Cell(labels[label], "share used")] = size
        elif kind == "available":
            found[Cell(name, "available")] = size
    return found


def bounds(name: str, text: str) -> Cells:
    """Return both ends of a headroom: "14.5 – 44.3 GiB", or the smaller alone if they are nearly the same."""
    if alone := re.fullmatch(r"up to (.*) after reclaim", text):
        return {Cell(name, "after reclaim"): alone[1]}
    low, dash, high = text.partition(" – ")
    if not dash or low == "—":
        return {Cell(name, end_of(text)): text.removeprefix("— ")}
    unit = "" if " " in low else f" {high.split()[1]}"
    return {Cell(name, "headroom"): low + unit, Cell(name, "after reclaim"): high}


def end_of(shown: Shown | str) -> str:
    """Return which end of a headroom is shown alone: what is free now, or the reason why neither is known."""
    return "headroom" if isinstance(shown, Shown) or shown[:1].isdigit() else "after reclaim"


def status_room(html: str, snapshot: Snapshot) -> Cells:
    """Return the headroom in the status line: of the device that has most, or of System RAM without one."""
    match = re.search(r'>can be allocated(.*?)<p class="status-value">(.*?)</p>(.*?)</div>', html, re.DOTALL)
    if match is None or "MIG" in match[1]:
        return {}
    names = [device.id for device in snapshot.devices]
    if len(names) > 1:
        label = plain(match[1]).removeprefix("on ")
        names = [one.id for one in snapshot.devices if label == place_of(one, snapshot)]
        if len(names) != 1:  # they share their memory
            return {}
    name = names[0] if names else CPU
    most, beside = figures_in(match[2])[:1], plain(match[3])
    if beside.startswith("after reclaim"):
        return named(name, ("after reclaim",), most)
    at_once = re.match(r"([\d.,]+ \w+) at once", beside)
    if at_once is None and "Free at once" in match[3]:
        at_once = re.search(r"CUDA says ([\d.,]+ \w+)", beside)
    if at_once is None or at_once[1] == most[0]:
        return named(name, (end_of(most[0]),), most)
    return named(name, ("headroom", "after reclaim"), [at_once[1], most[0]])


def place_of(device: Device, snapshot: Snapshot) -> str:
    """Return by which words a device of several is named: the places from which it allocates."""
    return ", ".join(snapshot.labels[place] for place in device.allocates_from) or device.name


def head_of(html: str) -> Cells:
    match = re.search(
        r'id="machine"[^>]*><b>.*?</b> <span>'
        r'(?:<span class="machine-name">(.*?)</span> <span>· |<span>)(.*?)(?: ·|</span>)',
        html,
        re.DOTALL,
    )
    assert match, "the page has no machine"
    name = {Cell(MACHINE, "name"): plain(match[1])} if match[1] else {}
    return name | {Cell(MACHINE, "architecture"): plain(match[2])}


def devices_page(view: View) -> Cells:
    html, found, known = view.get("/devices"), Cells(), truth(view.snapshot)
    relations = {view.snapshot.relation(share): share.id for share in view.snapshot.shares}
    labels = {pool.label: pool.id for pool in view.snapshot.pools}
    for name, section in blocks(html, "section", "device-"):
        line = re.search(rf"<p>{re.escape(name)} · ([^<]*)</p>", section)
        found[Cell(name, "architecture")] = plain(line[1]) if line else None
        found |= named(name, ("headroom",), fact(section, "free at once"))
        found |= named(name, ("after reclaim",), fact(section, "after reclaim, up to"))
        for text in fact(section, "available to allocate"):
            found |= named(name, (end_of(text),), [text])
        for row in re.findall(
            r'<tr[^>]*><th scope="row">(.*?)</tr>', section.partition("<h3>Processes")[0], re.DOTALL
        ):
            label = plain(re.split(r'</th>| <span class="muted">| <span class="badge', row, maxsplit=1)[0])
            values = figures_in(row.partition("</th>")[2])
            if label in labels:
                found |= named(labels[label], ("used", "size"), values)
            else:
                found |= named(relations[label], ("share used", "limit"), values)
        found |= once_more(found, bars_of(section, view.snapshot), known)
        room = re.search(r"<dt>can be allocated</dt><dd>(.*?)</dd>", section, re.DOTALL)
        both = Range(known[Cell(name, "headroom")], known[Cell(name, "after reclaim")])
        assert room, f"the row of {name} does not say what can be allocated"
        if " – " not in (text := plain(room[1])) or not is_same(both, text):
            found |= once_more(found, bounds(name, text), known)
    return found


def bars_of(section: str, snapshot: Snapshot) -> Cells:
    """Return the figures above and below the bars of a device: of a pool, its shares and its MIG instances."""
    found: Cells = {}
    pools = {pool.label: pool.id for pool in snapshot.pools}
    shares = {share.label: share.id for share in snapshot.shares}
    relations = {snapshot.relation(share): share.id for share in snapshot.shares}
    for bar in section.partition("<details")[0].split('<div class="device-bar ')[1:]:
        caption = re.search(r'device-used">(?:[^<]* (?=<b>))?(.*?) of (.*?)(?: · .*?)?</span></p>', bar, re.DOTALL)
        label = re.search(r'aria-label="(.*?): ', bar)
        assert caption, f"a bar has no figures: {bar}"
        assert label, f"a bar has no label: {bar}"
        name = unescape(label[1])
        use = [plain(one).removeprefix("— ") for one in caption.groups()]
        if name in pools:
            found |= named(pools[name], ("used", "size"), use)
        else:
            found |= named(shares[name], ("share used", "limit"), use)
        for relation, used in re.findall(r"([^<>]* ⊂ [^<>]*) <b>(.*?)</b>", bar.partition("device-used")[0]):
            found |= named(relations[unescape(relation).strip(", ")], ("share used",), figures_in(used))
        for piece, used, limit in re.findall(r"(MIG \d+) <b>(.*?)</b>(?: of ([^<]*))?</span>", bar):
            inside = {
                one.label.rpartition(" · ")[2]: one.id for one in snapshot.shares if one.within == pools[name]
            }
            found |= named(inside[piece], ("share used", "limit"), [plain(used), *filter(None, [limit])])
    return found


def processes_page(view: View) -> Cells:
    html, found = view.get("/processes"), Cells()
    for name, row in blocks(html, "tr", "process-"):
        pid = name.rpartition("-")[0]
        columns = re.findall(r'<td class="number[^"]*"[^>]*>(.*?)</td>', row, re.DOTALL)
        found[Cell(pid, "footprint")] = figures_in(columns[1])[0]
        process = next(one for one in view.snapshot.processes if str(one.pid) == pid)
        held = figures_in(columns[-1]) if "gpu-column" in row else []
        if len(held) == len(process.device_bytes) == 1:
            found[Cell(f"{pid}/{next(iter(process.device_bytes))}", "held")] = held[0]
    return found


def status_text(view: View) -> Cells:
    """Return the lines of `memwatch status` and `memwatchd --once`."""
    lines = ["".join(span.text for span in line) for line in status.render_lines(decoded(view), None, 200, False)]
    return status_cells("\n".join(lines), view.snapshot)


def status_cells(text: str, snapshot: Snapshot) -> Cells:
    found: Cells = {}
    # A label that is wider than its column has a separate line, above its figures.
    lines = re.sub(r"\n {20,}(?=[ █░▓▒])", "  ", text).splitlines()
    for pool in snapshot.pools:
        found |= place_line(lines, pool.label, pool.id, ("used", "size"))
    for share in snapshot.shares:
        found |= place_line(lines, share_label(share), share.id, ("share used", "limit"))
    for device in snapshot.devices:
        found |= device_line(lines, device.id)
    for line in lines:
        if row := re.match(r" *(\d+)  \S.*?  +((?:≥ )?[\d,.]+(?: (?:\w+ )?– [\d,.]+)? \w+|— [a-z ]+?)  ", line):
            found[Cell(row[1], "footprint")] = row[2].removeprefix("— ")
    return found | machine_line(lines, snapshot)


def machine_line(lines: list[str], snapshot: Snapshot) -> Cells:
    head = f"{snapshot.host}, "
    found = next((line.removeprefix(head) for line in lines if line.startswith(head)), None)
    return {Cell(MACHINE, "name"): found} if found else {}


def place_line(lines: list[str], label: str, name: str, quantities: tuple[str, str]) -> Cells:
    """Return the figures of "System RAM  ███░░  75.5 / 125.0 GiB  60.4%  available 49.5 GiB"."""
    pattern = re.compile(rf"(?:  )*(?:└ )?{re.escape(label)} +[^\w—<]* (?P<used>\S+(?: \w+)?) / (?P<whole>\S+ \S+)")
    match = next(filter(None, (pattern.match(line) for line in lines)), None)
    if match is None:
        pattern = re.compile(rf"(?:  )*(?:└ )?{re.escape(label)} +(?P<used>[\d.,]+ \S+|— [a-z ]+?)  +")
        match = next(filter(None, (pattern.match(line) for line in lines)), None)
        return {Cell(name, quantities[0]): match["used"].removeprefix("— ")} if match else {}
    found = {Cell(name, quantities[0]): match["used"], Cell(name, quantities[1]): match["whole"]}
    if available := re.search(r"available ([\d.,]+ \S+|— [a-z]+(?: [a-z]+)*)", match.string):
        found[Cell(name, "available")] = available[1].removeprefix("— ").strip()
    return found


ENDS = ("headroom", "after reclaim")


def device_line(lines: list[str], name: str) -> Cells:
    """Return the figures of "gpu0: NAME (unified memory): can allocate 29.8 GiB at once, up to 49.5 GiB after…"."""
    pattern = re.compile(rf"{name}: .*\((?P<architecture>[^()]*?)(?:, [a-z ]+)?\): (?P<room>.*)")
    match = next(filter(None, (pattern.match(line) for line in lines)), None)
    if match is None:
        return {}
    found: Cells = {Cell(name, "architecture"): match["architecture"]}
    if match["room"].startswith("headroom"):
        return found | {Cell(name, "after reclaim"): match["room"].removeprefix("headroom — ")}
    if both := re.fullmatch(r"can allocate (.*) at once, up to (.*) after reclaim", match["room"]):
        return found | {Cell(name, "headroom"): both[1], Cell(name, "after reclaim"): both[2]}
    one = re.fullmatch(r"can allocate (?:(?P<now>.*) now|up to (?P<after>.*) after reclaim)", match["room"])
    assert one, match["room"]
    return found | {Cell(name, end): text for end, text in zip(ENDS, one.groups(), strict=True) if text}


def status_tree(view: View) -> Cells:
    return tree_cells("\n".join(status.tree_lines(decoded(view), None)), view.snapshot)


def tree_cells(text: str, snapshot: Snapshot) -> Cells:
    """Return the figures of `memwatch status --tree`."""
    found: Cells = {}
    lines, place = text.splitlines(), ""
    pools = {pool.label: pool.id for pool in snapshot.pools}
    shares = {share_label(share): share.id for share in snapshot.shares}
    for line in lines:
        match = re.fullmatch(r"([│├└─ ]*)(\S.*?)(?: ⊂ .*?)?  +([\d.,]+ \S+|— [a-z ]+?)(?:  .*?)?", line)
        if match is None:
            continue
        label, shown = match[2], match[3].removeprefix("— ")
        if label in pools and not match[1]:
            place = pools[label]
            found[Cell(place, "size")] = shown
        elif label in ("used", "available") and place:
            found[Cell(place, label)] = shown
        elif label in shares:
            found[Cell(shares[label], "share used")] = shown
            if limit := re.search(r"  limit ([\d.,]+ \w+)", line):
                found[Cell(shares[label], "limit")] = limit[1]
    for device in snapshot.devices:
        found |= device_line(lines, device.id)
    return found | machine_line(lines, snapshot)


def decoded(view: View) -> Snapshot:
    """Return the snapshot as a client decodes it."""
    return snapshot_from(view.get("/api/v1/snapshot").encode())


def replayed(view: View) -> Cells:
    """Return a recorded snapshot, played again."""
    return truth(decoded(view))


def library_records(view: View) -> Cells:
    """Return the records of `memwatch.machine()` with a daemon."""
    return records_of(decode_machine(view.json("/api/v1/snapshot")))


def records_alone(view: View) -> Cells:
    """Return the records of `memwatch.machine()` without a daemon."""
    return {} if view.alone is None else records_of(from_snapshot(view.alone))


def records_of(machine: Machine) -> Cells:
    found: Cells = {Cell(MACHINE, "name"): machine.name, Cell(MACHINE, "architecture"): machine.architecture}
    for pool in machine.pools:
        sizes = {"size": pool.size_bytes, "used": pool.used_bytes, "available": pool.available_bytes}
        found |= {Cell(pool.id, quantity): size for quantity, size in sizes.items()}
    for share in machine.shares:
        found |= {Cell(share.id, "share used"): share.used_bytes, Cell(share.id, "limit"): share.limit_bytes}
    for device in machine.devices:
        found[Cell(device.id, "architecture")] = device.architecture.value
        found[Cell(device.id, "headroom")] = device.headroom_bytes
        found[Cell(device.id, "after reclaim")] = device.headroom_after_reclaim_bytes
    return found


class OfDaemon(library_machine.MachineCache):
    """Cache with the machine of a daemon, without a thread."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(Daemon("http://127.0.0.1:9"))
        self._known = machine

    def any(self) -> Machine:
        return self._known

    def fresh(self) -> Machine:
        return self._known

    def with_ram(self) -> Machine:
        return self._known


class Meminfo(Host):
    """/proc/meminfo of a machine, by its pool of System RAM."""

    def __init__(self, pool: Pool | None) -> None:
        super().__init__(Path("/nonexistent"))
        self._pool = pool

    def ram(self) -> Ram | Absent:
        pool = self._pool
        if pool is None or isinstance(pool.available_bytes, Absent):
            return Absent.NOT_AVAILABLE
        return Ram(pool.size_bytes, pool.available_bytes, pool.free_bytes, pool.quality)


@contextmanager
def program_on(machine: Machine, meminfo: Pool | None) -> Iterator[None]:
    """Let the library's functions in this process see a machine."""
    cache, silent = OfDaemon(machine), SimpleNamespace(get=lambda _: None)
    with ExitStack() as patched:
        for module in (library_machine, library_wait):
            patched.enter_context(patch.object(module, "machine_cache", cache))
        patched.enter_context(patch.object(library_machine, "host", Meminfo(meminfo)))
        patched.enter_context(patch.object(library_wait, "daemon", silent))
        yield


def library_functions(view: View) -> Cells:
    """Return the answers of the functions for one GPU, in a program beside a daemon."""
    machine = decode_machine(view.json("/api/v1/snapshot"))
    with program_on(machine, find_system_ram(machine.pools)):
        return called(machine)


def functions_alone(view: View) -> Cells:
    """Return the answers of the functions for one GPU, in a program without a daemon."""
    if view.alone is None:
        return {}
    machine = from_snapshot(view.alone)
    with program_on(machine, find_system_ram(machine.pools)):
        return called(machine)


def called(machine: Machine) -> Cells:
    """Return the answers for each GPU, and for the CPU."""
    found: Cells = {}
    for device in machine.devices:
        info = memory_info(device.id)
        found[Cell(device.id, "capacity")] = get_device_memory_bytes(device.id, default=0) or Absent.NOT_AVAILABLE
        if device.architecture in UNIFIED:  # False if it is not known
            found[Cell(device.id, "unified")] = is_unified_memory_gpu(device.id)
        if info is not None:
            found |= {Cell(device.id, "headroom"): info.headroom_bytes}
            found |= {Cell(device.id, "after reclaim"): info.headroom_after_reclaim_bytes}
            found |= place_cells(info, machine)
    if (info := memory_info()) is not None:
        found |= place_cells(info, machine)
    return found


def place_cells(info: MemoryInfo, machine: Machine) -> Cells:
    """Return the figures of the pool, or of the limit that is all that is known of a GPU's memory."""
    if info.pool in {share.id for share in machine.shares}:
        return named(info.pool, ("share used", "limit"), [info.used_bytes, info.total_bytes])
    return named(
        info.pool, ("size", "used", "available"), [info.total_bytes, info.used_bytes, info.available_bytes]
    )


def waiting(view: View) -> Cells:
    """Return the headroom by which `wait_for` judges: it does not wait for that size, and for one byte more."""
    machine, known = decode_machine(view.json("/api/v1/snapshot")), truth(view.snapshot)
    found: Cells = {}
    with program_on(machine, find_system_ram(machine.pools)):
        for device in machine.devices:
            for quantity, certain in (("headroom", True), ("after reclaim", False)):
                value = known[Cell(device.id, quantity)]
                if isinstance(value, int):
                    fits = [
                        wait_for(value + more, timeout=0, device=device.id, certain=certain)
                        for more in (0, 1)
                        if value + more
                    ]
                    found[Cell(device.id, quantity)] = value if fits in ([True, False], [False]) else f"{fits}"
    return found


def mcp(view: View) -> Cells:
    """Return the answers of the tools `memory_status` and `memory_holders`. Only this needs 0.5 s of imports."""
    from memwatch.cli import _mcp_tools

    snapshot = SimpleNamespace(json=view.json("/api/v1/snapshot"), snapshot=view.snapshot)
    tools = _mcp_tools.Tools(SimpleNamespace(snapshot=lambda: snapshot, address="test"))  # type: ignore[arg-type]
    tools._ask = lambda path, pairs=None, **query: {"processes": []}  # type: ignore[method-assign]  # noqa: ARG005
    found = tools.memory_status()
    held = tools.memory_holders(limit=_mcp_tools.MAX_ROWS)["holders"]
    places = json_pools(found["pools"]) | json_shares(found["shares"]) | json_devices(found["devices"])
    return places | json_processes(held) | json_machine(found["machine"])


def home_assistant_sensors(view: View) -> Cells:
    """Return the values of the MQTT sensors, in GiB. Home Assistant shows null as unknown, without a reason."""
    values, snapshot = home_assistant.values_of(view.snapshot), view.snapshot
    found: Cells = {}
    for pool in snapshot.pools:
        key = home_assistant.to_id(pool.id)
        found |= {
            Cell(pool.id, "size"): values[f"{key}_size"],
            Cell(pool.id, "available"): values[f"{key}_available"],
        }
    for device in snapshot.devices:
        key = home_assistant.to_id(device.id)
        found[Cell(device.id, "headroom")] = values[f"{key}_headroom"]
        found[Cell(device.id, "after reclaim")] = values[f"{key}_headroom_after_reclaim"]
    return {cell: value for cell, value in found.items() if value is not None}


def neighbour_tick(view: View) -> Cells:
    """Return the tick that is sent to other machines. It has no reasons, to keep it short."""
    tick = decode_tick(encode_tick(build_tick(view.snapshot, "run")))
    found: Cells = {}
    for pool in tick.pools:
        found |= {Cell(pool.id, "size"): pool.size}
        found |= {
            Cell(pool.id, name): value for name, value in (("used", pool.used), ("available", pool.available))
        }
    values = tick.headroom_size, tick.headroom, tick.headroom_after_reclaim
    found |= tick_headroom(tick.headroom_of, values, view.snapshot)
    return {cell: value for cell, value in found.items() if value is not None}


def tick_headroom(name: str, values: tuple[Json, Json, Json], snapshot: Snapshot) -> Cells:
    """Return the headroom of one device. GPUs of one name are told apart by nothing in a tick."""
    devices = [device.id for device in snapshot.devices if device.name == name]
    if len(devices) > 1 or not name:
        return {}
    place = devices[0] if devices else CPU
    return named(place, ("capacity", "headroom", "after reclaim"), list(values))


def machines_json(view: View) -> Cells:
    """Return the tick of this machine in the list of machines. Each null has the same reason there."""
    (own,) = (one for one in view.json("/api/v1/machines") if one["is_self"])
    tick = own["last_tick"]
    whole, now, after = (figure(tick, f"headroom_{one}") for one in ("size_bytes", "bytes", "after_reclaim_bytes"))
    found = json_pools(tick["pools"]) | tick_headroom(tick["headroom_of"], (whole, now, after), view.snapshot)
    return {cell: value for cell, value in found.items() if value is not Absent.NOT_AVAILABLE}


def fit_json(view: View) -> Cells:
    found: Cells = {}
    for one in view.json("/api/v1/fit?bytes=1GiB")["verdicts"]:
        found |= json_headroom(one["device"], one) | {Cell(one["device"], "capacity"): figure(one, "size_bytes")}
    return found


def backends(view: View) -> Cells:
    """Return the devices of the backends, for a machine with the libraries of all of them."""
    evidence = ProbeResults("linux", "root", "CPU", libcuda="libcuda.so.1")
    found = build_backends(evidence, view.snapshot, 0.0)
    return backend_cells(decode_backends(json.loads(to_bytes(WIRE.encode(found)))))


def backend_cells(backends: Backends) -> Cells:
    found: Cells = {}
    for one in (
        device for backend in backends.backends for device in backend.devices if device.kind != "accelerator"
    ):
        name = CPU if one.kind == "cpu" else one.id
        if name is None:
            continue
        figures = {"capacity": one.size_bytes, "headroom": one.headroom_bytes}
        figures |= {"after reclaim": one.headroom_after_reclaim_bytes}
        figures |= {} if name == CPU else {"unified": one.unified}
        found |= {Cell(name, quantity): value for quantity, value in figures.items()}
    return found


SURFACES: Mapping[str, Surface] = {
    "snapshot": snapshot_json,
    "parts": parts_json,
    "metrics": metrics,
    "otlp": otlp,
    "otlp conventions": otlp_conventions,
    "overview": overview,
    "devices": devices_page,
    "processes": processes_page,
    "status": status_text,
    "status --tree": status_tree,
    "replay": replayed,
    "machine()": library_records,
    "memory_info": library_functions,
    "wait_for": waiting,
    "machine() alone": records_alone,
    "memory_info alone": functions_alone,
    "mcp": mcp,
    "mqtt": home_assistant_sensors,
    "tick": neighbour_tick,
    "machines": machines_json,
    "fit": fit_json,
    "backends": backends,
}
# Those of a program that reads the machine itself.
ALONE = frozenset({"machine() alone", "memory_info alone"})
