"""Sample machines for the page with every component in every state."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.events import Event
from memwatch.core.leases import Lease
from memwatch.core.model import (
    Absent,
    AllocatorReport,
    Architecture,
    Bytes,
    Content,
    Device,
    Pool,
    PoolKind,
    Process,
    Share,
    ShareKind,
    Vitals,
)
from memwatch.core.owners import Owner
from memwatch.core.processes.growth import LeakSuspect
from memwatch.core.silences import Silence
from memwatch.core.snapshot import (
    CollectorState,
    CollectorStatus,
    Kernel,
    Level,
    Machine,
    MemoryPsi,
    Node,
    Pressure,
    ProcessScan,
    PsiLine,
    Reason,
    SelfUsage,
    Snapshot,
    Swap,
)
from memwatch.reporting.answers import AlertRow
from memwatch_monitor.notify.status import AlertView, DeliveryRow, ReceiverRow, RuleRow
from support.sample_parts import GIB, MEASURED, UNIX

COLLECTOR_ERRORS: dict[CollectorState, str | None] = {
    "ok": None,
    "failing": "/proc/buddyinfo line 2: found 'Node 0, zone', expected a zone name and numbers",
    "stalled": "no response for 12 s",
    "starting": None,
    "unavailable": "no /proc/spl/kstat/zfs/arcstats: this kernel has no ZFS",
}
USED = {Level.LOW: 0.41, Level.MEDIUM: 0.66, Level.HIGH: 0.84, Level.CRITICAL: 0.964}


class PatternSample(Struct, frozen=True):
    """A snapshot of one pool, and the name of the state that it shows."""

    state: str
    snapshot: Snapshot


def pools() -> Iterator[PatternSample]:
    for level, ratio in USED.items():
        verdict = Pressure(level.word, level, level, ratio, sample_reasons(level, ratio))
        yield PatternSample(level.word, machine(ram(level.word, ratio), (verdict,)))
    for absent in (Absent.NOT_AVAILABLE, Absent.STALE):
        word = "unknown" if absent is Absent.NOT_AVAILABLE else "stale"
        yield PatternSample(word, machine(silent(word, absent)))
    carve_out = Pool("carveout", PoolKind.CARVEOUT, "GPU carve-out", 512 << 20, 455 << 20, 57 << 20, "", MEASURED)
    yield PatternSample("no pressure level", machine(carve_out))
    yield PatternSample("shares inside shares", nested())
    yield PatternSample("leases", leased())
    yield PatternSample("limit without a pool", partition())


def leased() -> Snapshot:
    """Return a pool with two leases, of which one has partly arrived."""
    snapshot = machine(ram("leased", 0.41))
    leases = (
        Lease("lease_1", "train.py", "leased", 4242, 20 * GIB, {"leased": 14 * GIB}, UNIX - 40, UNIX + 80),
        Lease("lease_2", "llama-server", "leased", 4243, 30 * GIB, {"leased": 30 * GIB}, UNIX, UNIX + 1800),
    )
    return replace(snapshot, leases=leases)


def sample_reasons(level: Level, ratio: float) -> tuple[Reason, ...]:
    used = Reason("util", f"{ratio * 100:.1f}% used")
    if level is Level.LOW:
        return ()
    full = Reason("ttf", "full in 40 s at the current rate")
    waits = Reason("psi", "some tasks stalled on memory for 12% of the last 10 s")
    return (used, full, waits) if level is Level.CRITICAL else (used,)


def ram(name: str, ratio: float) -> Pool:
    """Return a pool of 128 GiB with this used fraction, half of it CUDA Pool."""
    size = 128 * GIB
    used = int(size * ratio)
    parts = {"anonymous": used // 4, "kernel": 3 * GIB, "devices": used // 2, "free": (size - used) // 3}
    parts["unattributed"] = used - parts["anonymous"] - parts["kernel"] - parts["devices"]
    parts["page_cache"] = size - used - parts["free"]
    contents = tuple(Content(kind, part) for kind, part in parts.items())
    return Pool(
        name,
        PoolKind.SYSTEM_RAM,
        "System RAM",
        size,
        used,
        size - used,
        "",
        MEASURED,
        free_bytes=parts["free"],
        unattributed_bytes=parts["unattributed"],
        contents=contents,
    )


def silent(name: str, absent: Absent) -> Pool:
    kind, label, size = PoolKind.VRAM, "GPU VRAM", 24 * GIB
    return Pool(name, kind, label, size, absent, absent, "", MEASURED, unattributed_bytes=absent)


def nested() -> Snapshot:
    """Return nested shares with and without limits, one of unknown use."""
    shares = (
        Share("slice", ShareKind.CGROUP, "ml.slice", "nested", 40 * GIB, "", MEASURED, limit_bytes=48 * GIB),
        Share("unit", ShareKind.CGROUP, "trainer.service", "slice", 31 * GIB, "", MEASURED),
        Share("dark", ShareKind.GTT, "GTT", "nested", Absent.NOT_PERMITTED, "", MEASURED),
        Share(
            "cuda", ShareKind.CUDA_POOL, "CUDA Pool", "nested", 43 * GIB, "", MEASURED, note="A note on a share."
        ),
    )
    verdicts = tuple(
        Pressure(name, level, level, ratio)
        for name, level, ratio in (("nested", Level.MEDIUM, 0.66), ("slice", Level.HIGH, 0.83))
    )
    return machine(ram("nested", 0.66), verdicts, shares)


def partition() -> Snapshot:
    """Return a limit on a GPU whose size is unknown, with a limit inside, beside System RAM."""
    shares = (
        Share("own", ShareKind.GPU_LIMIT, "GPU memory limit", "partitioned", 15 * GIB, "", MEASURED, 20 * GIB),
        Share("job", ShareKind.GPU_LIMIT, "trainer.service limit", "own", 9 * GIB, "", MEASURED, 12 * GIB),
    )
    verdicts = tuple(Pressure(name, Level.MEDIUM, Level.MEDIUM, 0.75) for name in ("own", "job"))
    found = machine(ram("beside", 0.41), verdicts)
    card = Device("partitioned", "NVIDIA", "NVIDIA L40S", Architecture.DISCRETE, allocates_from=("own",))
    return replace(found, shares=shares, devices=(*found.devices, card))


def machine(pool: Pool, pressure: tuple[Pressure, ...] = (), shares: tuple[Share, ...] = ()) -> Snapshot:
    """Return a snapshot of one pool with processes, devices, swap, PSI and collectors."""
    some, full = PsiLine(0.121, 0.064, 0.018, 812.4), Absent.NOT_SUPPORTED
    return Snapshot(
        seq=1,
        unix=UNIX,
        monotonic=1.0,
        boot_id="patterns",
        host="patterns",
        interval_seconds=1.0,
        simulated=True,
        machine=Machine(),
        self_usage=SelfUsage(48 << 20, 18.4, 0.0002, 0.0004, True),
        pools=(pool,),
        shares=shares,
        devices=devices(pool),
        processes=PROCESSES,
        process_scan=ProcessScan(312, 3),
        owners=OWNERS,
        swap=Swap(8 * GIB, 3 * GIB),
        psi=MemoryPsi(some, full),
        nodes=(Node(0, 64 * GIB, 9 * GIB, 2 * GIB, True, 4 << 20, 4 << 20), Node(1)),
        pressure=pressure,
        collectors=collectors(),
        claims=(AllocatorReport(20311, "PyTorch", "cuda:0", 18 * GIB, 19 * GIB, ooms=1),),
    )


def bare(snapshot: Snapshot) -> Snapshot:
    """Return the same machine with almost no data."""
    return replace(
        snapshot,
        machine=Machine(architecture="cpu_only"),
        devices=(),
        swap=Absent.NOT_AVAILABLE,
        psi=Absent.NOT_SUPPORTED,
        kernel=Kernel(),
    )


SENSORS = Vitals(71.0, 38.4, {"sm": 2_405_000_000}, ("power_cap",))


def devices(pool: Pool) -> tuple[Device, ...]:
    """Return one device in each state."""
    return tuple(
        Device(
            f"{pool.id}-{state}",
            "NVIDIA",
            f"NVIDIA GPU, {state.replace('_', ' ')}",
            Architecture.UNIFIED if state == "ok" else Architecture.UNKNOWN,
            uuid="GPU-5d2c8a7e-1b1f-4e54-9c57-0a2d6f3b9e11" if state == "ok" else Absent.NOT_AVAILABLE,
            driver="580.95.05",
            allocates_from=(pool.id,),
            headroom_after_reclaim_bytes=pool.available_bytes if state == "ok" else Absent.NOT_AVAILABLE,
            headroom_bytes=pool.free_bytes if state == "ok" else Absent.NOT_AVAILABLE,
            state=state,
            evidence=("the device is integrated",) if state == "ok" else (),
            process_list="complete" if state == "ok" else Absent.NOT_AVAILABLE,
            errors={"xid_79": 1} if state == "lost" else {},
            errors_seen_unix={"xid_79": UNIX - 60} if state == "lost" else {},
        ).with_vitals(SENSORS if state == "ok" else Vitals.absent(Absent.NOT_AVAILABLE))
        for state in ("ok", "lost", "needs_reset", "missing")
    )


def collectors() -> tuple[CollectorStatus, ...]:
    ages: dict[CollectorState, float] = {"ok": 0.0, "failing": 340.0, "stalled": 12.4}
    return tuple(
        CollectorStatus(f"is {state}", state, ages.get(state, Absent.NOT_AVAILABLE), 0.00003, error=error)
        for state, error in COLLECTOR_ERRORS.items()
    )


def process(pid: int, name: str, rss: Bytes, footprint: Bytes, bounds: tuple[int, int] | None = None) -> Process:
    basis = "rss + device, perhaps overlapping" if bounds else "rss"
    return Process(pid, UNIX - 60, name, rss, footprint, basis, "ada", footprint_range=bounds)


PROCESSES = (
    process(20311, "vllm", 6 * GIB, 20 * GIB),
    process(911, "between bounds", GIB, Absent.NOT_SUPPORTED, (3 * GIB, 5 * GIB)),
    process(4242, "private", Absent.NOT_PERMITTED, Absent.NOT_PERMITTED),
)
OWNERS = (
    Owner("unit", "vllm.service", 4, 9 * GIB, 21 * GIB),
    Owner("unit", "hidden.service", 1, GIB, Absent.NOT_PERMITTED),
    Owner("unit", None, 307, 2 * GIB),
)
SUSPECTS = (LeakSuspect(PROCESSES[0], 0.0, 9 * GIB, "grew steadily by 9.0 GiB in 1 h"),)
EVENTS = (
    Event(3, UNIX, "level", "System RAM: OK → critical (96.4% used; full in 40 s at the current rate)", "ram"),
    Event(2, UNIX - 90, "mark", "mark set by a program: epoch 3"),
    Event(1, UNIX - 86_400, "unclean", "unclean shutdown: machine crash or power loss"),
)
ALERTS = (
    AlertRow(
        "ram", "pressure.critical", "critical", "firing", UNIX - 90, False, sample_reasons(Level.CRITICAL, 0.964)
    ),
    AlertRow("gpu0", "device.lost", "critical", "firing", UNIX - 30, True, (Reason("lost", "fell off the bus"),)),
    AlertRow("ram", "pressure.high", "warning", "pending", None, False, sample_reasons(Level.HIGH, 0.84), 4.0),
    *(
        AlertRow(
            f"gpu0.mig{number}",
            "pressure.critical",
            "critical",
            "pending",
            None,
            False,
            sample_reasons(Level.CRITICAL, 0.97),
            52.0,
        )
        for number in (7, 9)
    ),
)
ALERT_GROUPS = AlertView(ALERTS).groups
RULE_ROWS = (
    RuleRow("pressure.critical", "critical", "memory is critical", 2, "MemoryCritical", 0.95),
    RuleRow("pressure.forecast", "warning", "memory will be full soon", 0, "MemoryFullSoon"),
)
SILENCES = (
    Silence("sil_all", UNIX + 3600, UNIX, 3600.0),
    Silence(
        "sil_one",
        UNIX + 86_400,
        UNIX,
        86_400.0,
        "pressure.critical",
        "ram",
        "a training run that may fill it",
        "ada",
    ),
)


NOTES = {"sil_one": "no target 'ram' at present for pressure.critical; present targets: vram0"}


def receivers() -> Iterator[ReceiverRow]:
    """Yield a receiver in each state: unused, ok, failing, disabled."""
    outcomes = {"delivered": 3, "retry": 2, "gave_up": 0, "disabled": 0, "superseded": 1}
    for name, failure, attempt, last in (
        ("unused", "", None, None),
        ("ok", "", None, UNIX),
        ("failing", "answered 503", 14.0, UNIX - 600),
        ("disabled", "answered 410: gone", None, UNIX - 600),
    ):
        title, is_disabled, waiting = f"a webhook, {name}", name == "disabled", 1 if failure else 0
        yield ReceiverRow(
            name.replace(" ", "-"), "webhook", title, ("pressure.critical",), (), is_disabled, waiting, outcomes,
            failure, attempt, last, deliveries_to(name, failure, attempt, last),
        )  # fmt: skip


def deliveries_to(
    receiver: str, failure: str, attempt: float | None, last: float | None
) -> tuple[DeliveryRow, ...]:
    """Return the log of a receiver in that state."""
    if last is None:
        return ()
    done = DeliveryRow(receiver, "msg_1", "pressure.critical", "ram", "firing", "delivered", 1, 204, "", last, None)
    result = "retry" if attempt else "disabled"
    failed = DeliveryRow(
        receiver, "msg_2", "device.lost", "gpu0", "fact", result, 3, 503, failure, UNIX - 4, attempt
    )
    queued = DeliveryRow(receiver, "msg_3", "test", "test", "test", "queued", 0, None, "", None, attempt)
    return (done,) if not failure else (queued, failed, done) if attempt else (failed, done)
