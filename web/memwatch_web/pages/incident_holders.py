"""Holders in the samples of an incident: their order, layers over time, and one moment as nodes.

From the ground up: memory of GPUs, processes, memory of no process, page cache. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from memwatch.core.units import size
from memwatch.reporting.incidents.records import Incident, Sample
from memwatch.reporting.incidents.words import find_cut, is_name_of
from memwatch.reporting.render import words
from memwatch.reporting.render.containment import Node
from memwatch.reporting.render.past import Layer

# Uses of System RAM in a sample, from the ground up, above the processes.
PARTS = ("huge_pages", "shared_memory", "kernel", "unattributed")
GROWTH = "level-critical"
OTHERS, REST, OTHER_USED = "other processes", "other memory", "other used"
# A process below this part of the target has no layer.
MIN_HOLDER_RATIO = 0.015


def rank_holders(one: Incident) -> list[str]:
    """Return the holders from the ground up: those on GPUs first, the cause above the others of its kind.

    Small ones are left out, and so a part of the other memory.
    """
    largest: dict[str, int] = {}
    for sample in one.samples:
        for name, held in sample.holders.items():
            largest[name] = max(held, largest.get(name, 0))
    whole = max([one.size_bytes or 0, *(sample.used_bytes for sample in one.samples)])
    return sorted(
        (name for name, held in largest.items() if held >= MIN_HOLDER_RATIO * whole or is_cause(one, name)),
        key=lambda name: (name not in one.gpu_holders, is_cause(one, name), -largest[name], name),
    )


def is_cause(one: Incident, name: str) -> bool:
    return one.cause is not None and is_name_of(one.cause, name)


def measure_holders(sample: Sample, ranked: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes of each holder, and of the memory beside them by use: together what is used.

    A scan may be older than the figures of the pool: what is above the use is cut off.
    """
    left = sample.used_bytes
    held: dict[str, int] = {}
    for name in ranked:
        held[name] = min(sample.holders.get(name, 0), left)
        left -= held[name]
    parts: dict[str, int] = {}
    for name in reversed(PARTS):
        if name in sample.parts:
            parts[name] = min(sample.parts[name], left)
            left -= parts[name]
    return held, {(OTHERS if sample.parts else REST): left, **dict(reversed(parts.items()))}


def list_shares(one: Incident) -> list[str]:
    """Return the labels of the devices' memory in the samples, from the ground up.

    With them the picture is that of the overview: what processes hold may be the same bytes, and has no layer.
    """
    return list(dict.fromkeys(label for sample in one.samples for label in sample.shares))


def measure_shares(one: Incident, sample: Sample, labels: Sequence[str]) -> tuple[dict[str, int], int]:
    """Return the bytes of each device and of the other used memory, and those that the cause has grown by."""
    left = sample.used_bytes
    held: dict[str, int] = {}
    for label in labels:
        held[label] = min(sample.shares.get(label, 0), left)
        left -= held[label]
    grown = 0
    if one.cause is not None:
        of_cause = [count for name, count in sample.holders.items() if is_cause(one, name)]
        grown = max(0, sum(of_cause) - max(0, one.cause.held_bytes - one.cause.growth_bytes))
    return {**held, OTHER_USED: left}, grown


def find_grown_place(one: Incident, labels: Sequence[str]) -> str:
    """Return the device, or the other used memory, that rose most while the cause grew: its growth is there."""
    cut = find_cut(one)
    if cut is None or one.cause is None:
        return OTHER_USED
    first = next((each for each in one.samples if each.unix >= one.cause.began), cut.sample)
    (before, _), (after, _) = (measure_shares(one, each, labels) for each in (first, cut.sample))
    return max((OTHER_USED, *labels), key=lambda name: after[name] - before[name])


def _split_shares(one: Incident, labels: Sequence[str]) -> list[Layer]:
    measured = [measure_shares(one, sample, labels) for sample in one.samples]
    place, layers = find_grown_place(one, labels), []
    for name in (*labels, OTHER_USED):
        kind = "anonymous" if name == OTHER_USED else "devices"
        grown = [min(held[name], grown) if name == place else 0 for held, grown in measured]
        rest = tuple(float(held[name] - by) for (held, _), by in zip(measured, grown, strict=True))
        layers.append(Layer(kind, rest))
        layers += [Layer(GROWTH, tuple(map(float, grown)))] if name == place else []
    return layers


def split_layers(one: Incident, whole: int) -> tuple[Layer, ...]:
    """Return the layers from the ground up. The growth of the cause is a separate layer. The last is not used."""
    labels = list_shares(one)
    layers = _split_shares(one, labels) if labels else _split_holders(one)
    if any(sample.parts for sample in one.samples):
        sizes = [min(sample.parts.get("page_cache", 0), whole - sample.used_bytes) for sample in one.samples]
        return (*layers, Layer("page_cache", tuple(map(float, sizes))))
    return (*layers, Layer("free", tuple(float(whole - sample.used_bytes) for sample in one.samples)))


def _split_holders(one: Incident) -> list[Layer]:
    ranked = rank_holders(one)
    measured = [measure_holders(sample, ranked) for sample in one.samples]
    layers = []
    for name in list_stack(one):
        kind = {REST: "unattributed"}.get(name, name) if name in (*PARTS, REST) else kind_of(one, name)
        sizes = [{**held, **parts}.get(name, 0) for held, parts in measured]
        if is_cause(one, name) and one.cause is not None:
            before = max(0, one.cause.held_bytes - one.cause.growth_bytes)
            layers.append(Layer(kind, tuple(float(min(held, before)) for held in sizes)))
            layers.append(Layer(GROWTH, tuple(float(max(0, held - before)) for held in sizes)))
        else:
            layers.append(Layer(kind, tuple(map(float, sizes))))
    return layers


def list_stack(one: Incident) -> list[str]:
    """Return the holders and the other uses from the ground up. The cause is on top of all processes, as on a page
    of now: what does not grow stays where it is.
    """
    ranked = rank_holders(one)
    beside = list(dict.fromkeys(name for sample in one.samples for name in measure_holders(sample, [])[1]))
    if OTHERS not in beside:
        return [*ranked, *beside]
    beside.remove(OTHERS)
    on_top = [name for name in ranked if is_cause(one, name) and kind_of(one, name) == "anonymous"]
    return [*(name for name in ranked if name not in on_top), OTHERS, *on_top, *beside]


def kind_of(one: Incident, name: str) -> str:
    return "devices" if name in one.gpu_holders else "anonymous"


def build_nodes(one: Incident, sample: Sample, whole: int) -> tuple[Node, ...]:
    """Return what the target held at a sample, from the ground up: families with their holders, and the rest."""
    labels = list_shares(one)
    held, beside = measure_holders(sample, rank_holders(one)) if not labels else ({}, {})
    sizes = {**held, OTHERS: beside.pop(OTHERS, 0)}
    named = [(name, sizes[name]) for name in list_stack(one) if sizes.get(name)] if not labels else []
    nodes: list[Node] = []
    used = 0.0

    def add(kind: str, count: int, name: str, details: tuple[str, ...] = (), grown: float = 0.0) -> Node:
        nonlocal used
        node = Node(
            kind, used / whole, count / whole, count, name, details, grown=grown, level="critical" if grown else ""
        )
        used += count
        return node

    if labels:
        shares, grown_bytes = measure_shares(one, sample, labels)
        place = find_grown_place(one, labels)
        for label, count in shares.items():
            start, grown_here = used, min(count, grown_bytes) if label == place else 0
            is_other = label == OTHER_USED
            rest = "" if is_other or not grown_here else f"other in {label}"
            inside = [add("anonymous" if is_other else "devices", count - grown_here, rest or label)]
            if grown_here and one.cause is not None:
                within = (f"in {words.duration(one.growth_seconds)}",) if one.growth_seconds else ()
                inside.append(add(GROWTH, grown_here, f"growth of {one.cause.who}", within))
            parts = tuple(node for node in inside if node.size_bytes)
            if is_other:
                nodes += parts
            elif count:
                whole_share = Node("devices", start / whole, count / whole, count, label, (f"⊂ {one.label}",))
                nodes.append(replace(whole_share, inside=parts) if grown_here else whole_share)
    for kind, family in (("devices", "mostly GPU"), ("anonymous", "processes")):
        start = used
        inside = [
            add(kind, count, title_of(name), _describe(one, name), _grown_part(one, name, count))
            for name, count in named
            if kind_of(one, name) == kind
        ]
        if not inside:
            continue
        total = sum(node.size_bytes for node in inside)
        is_alone = not sample.parts and len({kind_of(one, name) for name, _ in named}) < 2
        if is_alone:
            nodes += inside
        else:
            nodes.append(Node(kind, start / whole, total / whole, total, family, inside=tuple(inside)))
    for name, count in beside.items():
        if count:
            kind = "unattributed" if name == REST else name
            nodes.append(add(kind, count, words.CONTENT_WORDS.get(name, name)))
    cache = min(sample.parts.get("page_cache", 0), whole - sample.used_bytes)
    if cache:
        nodes.append(add("page_cache", cache, words.CONTENT_WORDS["page_cache"]))
    free = whole - sample.used_bytes - cache
    if free > 0:
        nodes.append(add("free", free, "free" if sample.parts else "available"))
    return tuple(nodes)


def title_of(name: str) -> str:
    """Return the name of a holder without its PID, or the words of another use."""
    return name.rpartition(" (")[0] or words.CONTENT_WORDS.get(name, name)


def _grown_part(one: Incident, name: str, count: int) -> float:
    if one.cause is None or not is_cause(one, name):
        return 0.0
    before = max(0, one.cause.held_bytes - one.cause.growth_bytes)
    return max(0, count - before) / count


def _describe(one: Incident, name: str) -> tuple[str, ...]:
    """Return the lines below the name of a holder."""
    if name == OTHERS:
        return ()
    pid = f"PID {name.rpartition(' (')[2].rstrip(')')}"
    if one.cause is None or not is_cause(one, name):
        return (pid,)
    seconds = one.growth_seconds
    within = f" in {words.duration(seconds)}" if seconds else ""
    return (f"+{size(one.cause.growth_bytes)}{within}", pid)


def names_of(one: Incident, layers: Sequence[Layer]) -> list[str]:
    """Return a name for each layer, empty for the part of the cause that is named with its growth."""
    names: list[str] = []
    if labels := list_shares(one):
        place, cause = find_grown_place(one, labels), one.cause.who if one.cause is not None else ""
        for label in (*labels, OTHER_USED):
            names += [label, cause] if label == place else [label]
    else:
        for name in list_stack(one):
            names += ["", title_of(name)] if is_cause(one, name) else [title_of(name)]
    return [*names, "page cache" if layers[-1].kind == "page_cache" else "available"]
