"""Test that records survive the pipe unchanged and that anything else is rejected."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core.drivers.nvml.records import (
    Ecc,
    GpuInstance,
    GpuMemory,
    GpuProcess,
    GpuReading,
    NvmlFailure,
    NvmlReading,
    Xid,
)
from memwatch.core.helper.codec import DecodeError, LineEncoder, from_line, to_line
from memwatch.core.model import Absent
from memwatch.core.printable import printable
from memwatch.reporting.history.notable_ticks import Holder

counts = st.integers(0, 2**63)
absent = st.sampled_from(Absent)
texts = st.text(max_size=9).map(printable)
words = texts | absent
memories = st.builds(GpuMemory, st.sampled_from([1, 2]), counts, counts, counts, counts | absent)
processes = st.builds(GpuProcess, st.integers(1, 2**31), counts | absent, st.none() | st.integers(0, 14))
instances = st.builds(GpuInstance, st.integers(0, 14), st.lists(texts).map(tuple), memories | absent)
gpus = st.builds(
    GpuReading,
    index=st.integers(0, 15),
    uuid=words,
    pci=words,
    name=words,
    memory=memories | absent,
    bar1_bytes=counts | absent,
    numa_node=st.integers(-1, 40) | absent,
    mig_enabled=st.booleans() | absent,
    instances=st.lists(instances, max_size=3).map(tuple),
    processes=st.lists(processes, max_size=3).map(tuple) | absent,
    ecc=st.builds(Ecc, counts | absent, remapping_failed=st.booleans() | absent),
    codes=st.dictionaries(texts, st.integers(0, 999), max_size=2),
)
xids = st.builds(Xid, texts, st.integers(0, 200), counts, st.floats(0, 2e9))
readings = st.builds(
    NvmlReading, words, words, st.lists(gpus, max_size=3).map(tuple), xids=st.lists(xids, max_size=2).map(tuple)
)


@given(readings)
def test_reading_survives_a_round_trip(reading: NvmlReading) -> None:
    """Absent values with their reasons, names, integers of any size."""
    line = to_line(reading)

    assert line.count(b"\n") == 1
    assert from_line(NvmlReading, line) == reading


@given(st.text(max_size=20))
def test_texts_of_a_helper_become_printable(text: str) -> None:
    """Names that a driver or a vendor library returns, and keys of mappings."""
    gpu = GpuReading(0, text, text, text, codes={text: 1})
    shown = printable(text)

    read = from_line(NvmlReading, to_line(NvmlReading(text, text, (gpu,))))

    assert (read.driver, read.gpus[0].name, dict(read.gpus[0].codes)) == (shown, shown, {shown: 1})


@given(readings, readings)
def test_equal_reading_is_encoded_once(one: NvmlReading, other: NvmlReading) -> None:
    """Equal readings are encoded once, also with another reading in between."""
    speaker = LineEncoder()

    lines = [speaker.encode(reading) for reading in (one, replace(one), other, one)]

    assert lines == [to_line(one), to_line(one), to_line(other), to_line(one)]
    assert lines[0] is lines[1]
    assert speaker.encode(NvmlFailure("failed", "gone")) == to_line(NvmlFailure("failed", "gone"))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_rejected(line: bytes) -> None:
    """All unexpected bytes raise one kind of error."""
    with pytest.raises(DecodeError):
        from_line(NvmlFailure, line)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5))
def test_json_of_another_shape_is_rejected(value: object) -> None:
    """Valid JSON is not enough."""
    with pytest.raises(DecodeError):
        from_line(NvmlReading, json.dumps(value).encode())


def test_record_with_a_field_of_another_type_is_rejected() -> None:
    """A number as text, a list in place of a record, an unknown reason."""
    good = json.loads(to_line(NvmlFailure("no_driver", "not loaded", 9)))

    changes: list[dict[str, object]] = [{"code": "9"}, {"text": []}, {"reason": {"absent": "because"}}]

    for change in changes:
        with pytest.raises(DecodeError):
            from_line(NvmlFailure, json.dumps(good | change).encode())


def test_record_of_a_newer_version_is_read_without_its_new_fields() -> None:
    """On every level, as after an upgrade that was taken back."""
    reading = NvmlReading("580.95", "13.0", (), xids=(Xid("GPU-1", 79, 2, 1.7e9),))
    line = json.loads(to_line(reading))
    line["plan"] = {"power": [1, 2]}
    line["xids"][0]["channel"] = 7

    assert from_line(NvmlReading, json.dumps(line).encode()) == reading


def test_record_of_an_older_version_gets_the_defaults() -> None:
    """Only of fields that have one."""
    line = json.loads(to_line(NvmlFailure("no_driver", "not loaded", 9)))
    del line["code"]

    assert from_line(NvmlFailure, json.dumps(line).encode()) == NvmlFailure("no_driver", "not loaded")
    del line["text"]
    with pytest.raises(DecodeError, match="NvmlFailure without text"):
        from_line(NvmlFailure, json.dumps(line).encode())


def test_figure_without_a_reason_is_absent() -> None:
    """An older version wrote null for some figures."""
    line = json.loads(to_line(Holder(1, "a", "root", None, None, 5, 5, {"gpu0": 7})))
    line["device_bytes"] = {"gpu0": None}

    assert dict(from_line(Holder, json.dumps(line).encode()).device_bytes) == {"gpu0": Absent.NOT_AVAILABLE}


def test_absent_word_of_a_field_that_may_be_null_survives_a_round_trip() -> None:
    """A process may have no unit, and its unit may be unknown."""
    for unit in (None, "a.service", Absent.NOT_PERMITTED):
        holder = Holder(1, "a", Absent.STALE, unit, None, 5, 5)

        assert from_line(Holder, to_line(holder)) == holder


def test_absent_value_in_a_mapping_survives_a_round_trip() -> None:
    """A process's part of one share may be known and that of another absent."""
    holder = Holder(1, "a", "root", None, None, 5, 5, {"cuda0": Absent.NOT_PERMITTED, "gpu0": 7})

    assert from_line(Holder, to_line(holder)) == holder
