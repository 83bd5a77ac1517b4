"""Labels of /metrics by which series join with device_info and machine_info."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from memwatch.core.model import PoolKind, Quality, Share, ShareKind
from memwatch.core.reading.identity import Identity
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch_web.metrics.families import Exporter
from support.fakes import GIB, ram
from support.sample_snapshots import critical_gb10


def samples(snapshot: Snapshot, names: Iterable[str], identity: Identity | None = None) -> list[dict[str, str]]:
    text = Exporter("1", identity=identity).render(snapshot, generate_latest).decode()
    wanted = {f"memwatch_{name}" for name in names}
    return [
        dict(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in wanted
    ]


def with_mig() -> Snapshot:
    base = critical_gb10()
    vram = replace(ram(GIB, 2 * GIB, "gpu0"), kind=PoolKind.VRAM)
    mig = Share(
        "gpu0.mig1", ShareKind.MIG_INSTANCE, "MIG 1", "gpu0", GIB, "nvml", Quality.MEASURED, GIB, device="gpu0"
    )
    judged = [Pressure(target, Level.LOW, Level.LOW, 0.1) for target in ("ram", "gpu0", "gpu0.mig1")]
    return replace(base, pools=(*base.pools, vram), shares=(*base.shares, mig), pressure=tuple(judged))


def test_pools_shares_and_targets_of_a_device_have_its_label() -> None:
    """One group_left with device_info gives each of them the name of the GPU; System RAM belongs to no device."""
    found = samples(with_mig(), ("pool_used_bytes", "share_used_bytes", "pressure_level"))

    devices = [
        (labels.get("pool") or labels.get("share") or labels.get("target"), labels["device"]) for labels in found
    ]
    assert devices == [
        ("ram", ""),
        ("gpu0", "gpu0"),
        ("cuda0", "gpu0"),
        ("gpu0.mig1", "gpu0"),
        ("ram", ""),
        ("gpu0", "gpu0"),
        ("gpu0.mig1", "gpu0"),
    ]


def test_machine_info_names_the_machine() -> None:
    identity = Identity("spark-1", "boot", kernel="6.17.0-nvidia", cpu="aarch64")

    (labels,) = samples(critical_gb10(), ("machine_info",), identity)

    assert labels == {
        "hostname": "spark-1",
        "model": "NVIDIA DGX Spark",
        "architecture": "aarch64",
        "kernel": "6.17.0-nvidia",
        "memory": "unified",
    }


def test_unknown_parts_of_the_machine_are_empty_labels() -> None:
    (labels,) = samples(critical_gb10(), ("machine_info",))

    assert (labels["architecture"], labels["kernel"]) == ("", "")


def test_labels_of_the_configuration_are_in_machine_info() -> None:
    """They reach any series by a join on instance."""
    exporter = Exporter("1", labels=lambda: {"cluster": "blue", "rack": "7"})

    text = exporter.render(critical_gb10(), generate_latest).decode()

    assert 'memwatch_machine_info{architecture="",cluster="blue",' in text
    assert ',rack="7"}' in text
