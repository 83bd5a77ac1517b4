"""Nested contents of a pool: shares, their holders, and the parts of a model server in its process.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.model import Absent
from memwatch.reporting.render import words
from memwatch.reporting.render.memory_map import GPU_MEMORY, Bracket, MemoryMap, Segment, Slice

# Bytes of rounding between two ways to a sum.
SLACK = 1e-9


class Growing(Struct, frozen=True):
    """The process that grows in a pool, and by how many bytes in `seconds`: they take the colour of the level.

    `kind`: the bytes that it holds there. `name`: its name, for a pool whose parts have no names of processes.
    """

    pool: str
    pid: int
    level: str
    grown_bytes: int
    seconds: float
    kind: str = "anonymous"
    name: str = ""


class Node(Struct, frozen=True):
    """Bytes of a pool with a name. `start` and `part`: where they stand and how high, as fractions of the pool.

    `grown`: the part of these bytes, at their top, that is new at this `level`; without it, they are a MIG instance
    of this level. `link`: their page.
    """

    kind: str
    start: float
    part: float
    size_bytes: int
    name: str
    details: tuple[str, ...] = ()
    inside: tuple[Node, ...] = ()
    grown: float = 0.0
    level: str = ""
    link: str = ""

    @property
    def depth(self) -> int:
        return 1 + max((one.depth for one in self.inside), default=0)


def build_nodes(
    one: MemoryMap, growing: Growing | None = None, levels: Mapping[str, str] = MappingProxyType({})
) -> tuple[Node, ...]:
    """Return what a pool holds, from the ground up. In memory of a GPU that is its holders, without a family.

    `levels`: those of MIG instances by id.
    """
    if one.slices:
        return tuple(_build_slices(one, levels))
    holders = _lift_growing([_build_holder(found, one, growing) for found in one.segments if found.size_bytes], one)
    if one.pool is None or one.pool.kind in GPU_MEMORY:
        return tuple(holders)
    families = tuple(_build_families(one, holders))
    if growing is None or growing.pool != one.whole.id or any(node.grown for node in holders):
        return families
    return tuple(_cut_growth(families, growing))


def _cut_growth(nodes: Sequence[Node], growing: Growing) -> Iterator[Node]:
    """Cut the bytes that grow off the top of those of their kind, where no process has a name.

    They are a part of a share: its own figure is that of all of it.
    """
    kinds = ("anonymous", "used") if growing.kind == "anonymous" else (growing.kind,)
    last = next((one for one in reversed(nodes) if one.kind in kinds), None)
    for node in nodes:
        grown = min(growing.grown_bytes, node.size_bytes)
        if node is not last or node.inside or not growing.name or grown <= 0:
            yield node
            continue
        part = node.part * grown / node.size_bytes
        rest = replace(node, part=node.part - part, size_bytes=node.size_bytes - grown, details=())
        top = Node(
            f"level-{growing.level}",
            node.start + node.part - part,
            part,
            grown,
            f"growth of {growing.name}",
            (f"in {words.duration(growing.seconds)}",),
        )
        if node.kind == "devices":
            rest = replace(rest, name=f"other in {node.name}")
            yield replace(node, inside=(rest, top) if rest.size_bytes else (top,))
        else:
            yield from (rest, top) if rest.size_bytes else (top,)


def _lift_growing(nodes: Sequence[Node], one: MemoryMap) -> list[Node]:
    """Put the process that grows on top of all of its kind, or of its share: past and now show it at one height."""
    found = next((node for node in nodes if node.grown), None)
    if found is None:
        return list(nodes)
    share = _find_share(found, [each for each in one.brackets if each.share])
    top = 1.0 if share is None else share.start + share.width
    above = [
        each
        for each in nodes
        if each.kind == found.kind and each.start > found.start and each.start + each.part <= top + SLACK
    ]
    lifted = [_shift(found, sum(each.part for each in above)), *(_shift(each, -found.part) for each in above)]
    others = [each for each in nodes if each is not found and each not in above]
    return sorted([*others, *lifted], key=lambda each: each.start)


def _shift(node: Node, by: float) -> Node:
    return replace(node, start=node.start + by, inside=tuple(_shift(inner, by) for inner in node.inside))


def _build_families(one: MemoryMap, holders: Sequence[Node]) -> Iterator[Node]:
    starts = accumulate((part.size_bytes for part in one.parts), initial=0)
    size = one.whole.size_bytes
    for part, before in zip(one.parts, starts, strict=False):
        link = "processes" if part.kind == "anonymous" else "devices" if part.kind == "devices" else ""
        family = Node(part.kind, before / size, part.size_bytes / size, part.size_bytes, part.label, link=link)
        inside = _list_inside(family, holders)
        shares = [found for found in one.brackets if found.share and part.kind == "devices"]
        if shares and all(_find_share(node, shares) is not None or not _is_named(node) for node in inside):
            yield from _build_shares(family, shares, inside, one.whole.label)
        elif any(_is_named(node) for node in inside):
            yield replace(family, inside=inside)
        elif part.size_bytes:
            yield family


def _is_named(node: Node) -> bool:
    return bool(node.details)


def _build_shares(family: Node, shares: Sequence[Bracket], inside: Sequence[Node], whole: str) -> Iterator[Node]:
    """Yield the shares of devices with their holders, and the memory of devices that no share explains."""
    end = family.start
    for found in shares:
        share = Node(
            "devices", found.start, found.width, found.size_bytes, found.label, (f"⊂ {whole}",), link="devices"
        )
        named = tuple(node for node in inside if _is_named(node) and _find_share(node, [found]) is found)
        yield (
            replace(share, inside=(*named, *_build_rest(share, named, f"other in {share.name}")))
            if named
            else share
        )
        end = found.start + found.width
    left = family.size_bytes - sum(found.size_bytes for found in shares)
    if left > 0:
        yield replace(family, start=end, part=family.start + family.part - end, size_bytes=left)


def _find_share(node: Node, shares: Sequence[Bracket]) -> Bracket | None:
    """Return the share that has all of a holder's bytes in the picture."""
    end = node.start + node.part
    return next(
        (one for one in shares if one.start - SLACK <= node.start and end <= one.start + one.width + SLACK),
        None,
    )


def _list_inside(family: Node, nodes: Iterable[Node]) -> tuple[Node, ...]:
    end = family.start + family.part
    return tuple(
        node for node in nodes if family.start - SLACK <= node.start and node.start + node.part <= end + SLACK
    )


def _build_rest(parent: Node, nodes: Sequence[Node], name: str) -> tuple[Node, ...]:
    """Return what nothing named holds: it is on top, or below the process that grows."""
    left = parent.size_bytes - sum(node.size_bytes for node in nodes)
    if left <= 0:
        return ()
    start, end = parent.start, parent.start + parent.part
    for node in sorted(nodes, key=lambda one: one.start):
        if node.grown and node.start > start + SLACK:
            end = node.start
        else:
            start = max(start, node.start + node.part)
    return (Node(parent.kind, start, end - start, left, name, link=parent.link),)


def _build_holder(found: Segment, one: MemoryMap, growing: Growing | None) -> Node:
    kind, process = found.kind, found.process
    if found.holder == "gpu":
        kind = "devices"
    node = Node(kind, found.start, found.width, found.size_bytes, found.label)
    if process is None:
        named = any(other.process is not None and other.kind == found.kind for other in one.segments)
        return replace(node, name="other") if named and not found.label.startswith("other") else node
    node = replace(node, details=(f"PID {process.pid}",), link=f"processes/{process.pid}")
    engine = next((drawn.engine for drawn in one.engine_parts if process.pid in drawn.engine.pids), None)
    if engine is not None and kind == "devices":
        model = () if isinstance(engine.model, Absent) else (engine.model.rpartition("/")[2],)
        node = replace(node, name=engine.title, details=(f"{process.title} {process.pid}", *model))
    parts = [
        Node(
            f"engine-{drawn.part.kind}",
            drawn.start,
            drawn.width,
            drawn.part.size_bytes,
            drawn.part.label,
            ("empty: can be freed",) if drawn.part.kind == "kv_reserved" else (),
            link=node.link,
        )
        for drawn in one.engine_parts
        if process.pid in drawn.engine.pids and _list_inside(node, [_at(drawn.start, drawn.width)])
    ]
    if (
        growing
        and (growing.pool, growing.pid) == (one.whole.id, process.pid)
        and found is _find_largest(one, process.pid)
    ):
        node = _mark_growth(node, growing)
    return replace(node, inside=(*parts, *_build_rest(node, parts, "rest of engine"))) if parts else node


def _find_largest(one: MemoryMap, pid: int) -> Segment:
    mine = [found for found in one.segments if found.process is not None and found.process.pid == pid]
    return max(mine, key=lambda found: found.size_bytes)


def _mark_growth(node: Node, growing: Growing) -> Node:
    """Give the bytes that a process has grown by the colour of the level: those at the top of what it holds."""
    grown = min(growing.grown_bytes, node.size_bytes)
    if grown <= 0:
        return node
    words_of_it = f"+{words.size(grown)} in {words.duration(growing.seconds)}"
    return replace(node, details=(words_of_it, *node.details), grown=grown / node.size_bytes, level=growing.level)


def _at(start: float, part: float) -> Node:
    return Node("", start, part, 0, "")


def _build_slices(one: MemoryMap, levels: Mapping[str, str]) -> Iterator[Node]:
    """Yield the MIG instances, each filled as far as it is used, and the memory that none has."""
    size, end = one.whole.size_bytes, 0.0
    for found in one.slices:
        limit = found.share.limit_bytes
        if not isinstance(limit, int):
            continue
        name, level = found.share.label.rpartition(" · ")[2], levels.get(found.share.id, "")
        if isinstance(found.used, Absent):
            yield Node("unknown", found.start, found.width, limit, name, ("use not known",), link="devices")
        else:
            inside = tuple(_split_slice(found, limit, found.used))
            yield Node("slice", found.start, found.width, limit, name, (), inside, level=level, link="devices")
        end = found.start + found.width
    left = size - round(end * size)
    if left > 0:
        yield Node("unattributed", end, 1 - end, left, "not sliced")


def _split_slice(found: Slice, limit: int, used: float) -> Iterator[Node]:
    """Yield what processes hold of a MIG instance, what is used without one, and what is free."""
    rest = found.unattributed
    start, left, held = found.start, limit, "held" if rest else "used"
    for kind, name, part in (("devices", held, used - rest), ("unattributed", "unattributed", rest)):
        size = min(left, round(limit * part))
        if size:
            yield Node(kind, start, found.width * part, size, name)
            start, left = start + found.width * part, left - size
    if left:
        yield Node("free", start, found.start + found.width - start, left, "free")


def count_columns(nodes: Iterable[Node]) -> int:
    """Return how deep containment goes: 1 to 3."""
    return max((node.depth for node in nodes), default=1)
