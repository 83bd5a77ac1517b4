"""Owners in /metrics: the largest of each kind, the others as one, and series that do not come and go."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from memwatch.core.model import Absent, Process
from memwatch.core.owners import Owner
from memwatch.core.snapshot import Snapshot
from memwatch_web.metrics.families import Exporter
from memwatch_web.metrics.machine_families import DEFAULT_OWNERS, KEEP_SECONDS, process_families
from support.sample_snapshots import critical_gb10, left_behind

MIB = 1 << 20
Labels = Mapping[str, str]


def owners_of(sizes: Mapping[str | Absent | None, int], kind: str = "unit") -> tuple[Owner, ...]:
    return tuple(Owner(kind, name, 1, size) for name, size in sizes.items())  # type: ignore[arg-type]


def machine(owners: tuple[Owner, ...], monotonic: float = 0.0, processes: tuple[Process, ...] = ()) -> Snapshot:
    return replace(critical_gb10(), owners=owners, processes=processes, monotonic=monotonic)


def samples(snapshot: Snapshot, name: str, exporter: Exporter | None = None) -> list[tuple[Labels, float]]:
    text = (exporter or Exporter("1")).render(snapshot, generate_latest).decode()
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"memwatch_owner_{name}_bytes"
    ]


def by_name(found: list[tuple[Labels, float]]) -> dict[str, float]:
    return {labels["name"]: figure for labels, figure in found}


MANY: dict[str | Absent | None, int] = {f"u{number:03}.service": (500 - number) * MIB for number in range(500)}


def test_owners_of_one_kind_add_up_to_all_processes() -> None:
    """The largest, the others as one, and the processes without an owner: nothing is missing and nothing twice."""
    owners = owners_of({**MANY, None: 7 * MIB})

    found = by_name(samples(machine(owners), "resident"))

    assert len(found) == DEFAULT_OWNERS + 2
    assert found["u000.service"] == 500 * MIB
    assert found["(none)"] == 7 * MIB
    assert sum(found.values()) == sum(owner.rss_bytes for owner in owners)


def test_owner_that_is_overtaken_keeps_its_series_for_ten_minutes() -> None:
    """Series that come and go break graphs; one that was among the largest stays, and then ends."""
    exporter = Exporter("1")
    samples(machine(owners_of(MANY)), "resident", exporter)
    later = {**MANY, "u007.service": MIB, "new.service": 900 * MIB}

    soon = by_name(samples(machine(owners_of(later), KEEP_SECONDS - 1), "resident", exporter))
    late = by_name(samples(machine(owners_of(later), KEEP_SECONDS + 1), "resident", exporter))

    assert soon["u007.service"] == MIB
    assert soon["new.service"] == late["new.service"] == 900 * MIB
    assert "u007.service" not in late
    assert sum(soon.values()) == sum(late.values()) == sum(later.values())


def test_owner_series_are_bounded_while_the_largest_change() -> None:
    """Even if the largest are other owners at every scrape, at most twice the limit is exported."""
    exporter = Exporter("1")
    for turn in range(20):
        sizes: dict[str | Absent | None, int] = {
            f"u{past}-{number}.service": 900 * MIB if past == turn else MIB
            for past in range(turn + 1)
            for number in range(DEFAULT_OWNERS)
        }
        found = samples(machine(owners_of(sizes), float(turn)), "resident", exporter)

    assert len(found) <= 2 * DEFAULT_OWNERS + 1


def test_device_memory_of_an_owner_is_exported_by_place_with_its_device() -> None:
    """The footprint counts no byte twice; the device memory joins with device_info."""
    processes = tuple(
        Process(
            pid, 0.0, "vllm", MIB, 4 * MIB, "rss + device", unit="vllm.service", device_bytes={"cuda0": 3 * MIB}
        )
        for pid in (1, 2)
    )

    shot = machine(owners_of({"vllm.service": 2 * MIB}), processes=processes)

    assert samples(shot, "device") == [
        ({"kind": "unit", "name": "vllm.service", "within": "cuda0", "device": "gpu0"}, 6 * MIB)
    ]
    assert by_name(samples(shot, "footprint")) == {"vllm.service": 8 * MIB}


def test_memory_of_processes_that_are_not_visible_has_an_owner_sample() -> None:
    found = by_name(samples(left_behind(), "device"))

    assert found["(not visible)"] == 62 << 30


def test_footprint_is_absent_without_devices() -> None:
    """It would equal the resident memory."""
    shot = replace(critical_gb10(), owners=owners_of({"a.service": MIB}), processes=(), devices=())

    assert samples(shot, "resident")
    assert samples(shot, "footprint") == []


@pytest.mark.parametrize("kind", ["pod", "container"])
def test_pods_and_containers_have_the_labels_of_kubernetes(kind: str) -> None:
    """Names instead of ids, and the labels that kube-state-metrics has."""
    owners = owners_of({"0f1e": MIB, "5a5a": 2 * MIB}, kind)
    names = {"0f1e": "ml/vllm-0" if kind == "pod" else "ml/vllm-0/server"}
    shot = replace(machine(owners), pod_names=names, container_names=names)

    known, unknown = sorted((dict(labels) for labels, _ in samples(shot, "resident")), key=len, reverse=True)

    expected = {"kind": kind, "name": names["0f1e"], "namespace": "ml", "pod": "vllm-0"}
    assert known == expected | ({"container": "server"} if kind == "container" else {})
    assert unknown == {"kind": kind, "name": "5a5a"}


def test_two_containers_with_one_name_have_separate_series() -> None:
    """Two samples with the same labels would make Prometheus reject the whole scrape."""
    shot = replace(
        machine(owners_of({"aaaa": 2 * MIB, "bbbb": MIB}, "container")),
        container_names={"aaaa": "web", "bbbb": "web"},
    )

    assert by_name(samples(shot, "resident")) == {"web": 2 * MIB, "bbbb": MIB}


def test_user_that_is_not_known_is_no_owner_by_name() -> None:
    found = by_name(samples(machine(owners_of({Absent.NOT_PERMITTED: MIB, "ada": MIB}, "user")), "resident"))

    assert found == {"(not known)": MIB, "ada": MIB}


def test_no_two_samples_of_owners_have_the_same_labels() -> None:
    text = Exporter("1").render(machine(owners_of({**MANY, None: MIB})), generate_latest).decode()

    keys = re.findall(r"^(memwatch_owner_\S+\{.*\}) ", text, re.MULTILINE)
    assert len(keys) == len(set(keys))


def test_number_of_owners_can_be_set_and_zero_exports_none() -> None:
    shot = machine(owners_of(MANY))

    few = by_name(samples(shot, "resident", Exporter("1", max_owners=lambda: 2)))
    none = samples(shot, "resident", Exporter("1", max_owners=lambda: 0))

    assert (len(few), none) == (3, [])
    assert sum(few.values()) == sum(MANY.values())


def test_largest_processes_are_those_of_the_pages_where_a_footprint_is_a_range() -> None:
    """On a unified machine those with GPU memory have a range, and are the largest."""
    small = Process(1, 0.0, "small", MIB, MIB, "rss")
    large = Process(
        2, 0.0, "large", MIB, Absent.NOT_AVAILABLE, "rss + device", footprint_range=(40 * MIB, 80 * MIB)
    )
    families = process_families(machine((), processes=(small, large)), 1)

    assert {sample.labels["pid"] for family in families for sample in family.samples} == {"2"}
