"""Test that a field is declared once: its record gives JSON, the description of the API, and the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import pytest
from msgspec import Struct, field

from memwatch.core.doc import Doc
from memwatch.core.model import Absent, Bytes, Device
from memwatch.core.snapshot import Level
from memwatch.core.wire import ABSENT, Description, Form, Shape, Wire, to_bytes
from memwatch.reporting.render.json import snapshot_json
from memwatch_web.metrics.samples import gauges
from support.api_schema import check_answer
from support.sample_snapshots import SAMPLES

FAN = "Turns of the fan in a minute."


class Cooled(Device, frozen=True):
    """A device with one more figure."""

    fan_rpm: Annotated[int | Absent, Doc(FAN, examples=(1200,))] = Absent.NOT_READ


class Part(Struct, frozen=True):
    kind: Literal["fast", "slow"]
    size_bytes: Bytes


class Whole(Struct, frozen=True):
    """Parts with a level.

    A second paragraph is for readers of the code.
    """

    label: str
    level: Level | None = None
    parts: tuple[Part, ...] = ()
    sizes: Mapping[str, Bytes] = field(default_factory=dict)
    secret: int = 0

    @property
    def count(self) -> Annotated[int, Doc("Number of parts.")]:
        return len(self.parts)


def home(whole: Whole, about: str) -> str | None:
    return f"{whole.label} of {about}"


WHOLE = Shape(Whole, "Sum", further=(home, Whole.count), without=("secret",), order=("home", ..., ABSENT, "count"))
WIRE = Wire((WHOLE,))
EXAMPLE = Whole("A", Level.HIGH, (Part("fast", Absent.STALE),), {"x": 1, "y": Absent.NOT_READ}, 7)


def test_figure_of_a_device_needs_one_field() -> None:
    """A new field is in JSON, in the description and in the decoder. A line with its name shows it in /metrics."""
    cooled = Cooled("gpu0", "NVIDIA", "GPU", SAMPLES["critical_gb10"]().devices[0].architecture, fan_rpm=900)
    wire, unread = Wire(), Cooled("gpu0", "NVIDIA", "GPU", cooled.architecture)
    description = Description(wire)
    description.add(wire.shape_of(Cooled))

    assert wire.encode(cooled)["fan_rpm"] == 900
    assert (wire.encode(unread)["fan_rpm"], wire.encode(unread)[ABSENT]["fan_rpm"]) == (None, "not_read")
    assert wire.decode(Cooled, wire.encode(cooled)) == cooled
    assert description.definitions["Cooled"]["properties"]["fan_rpm"] == {
        "anyOf": [{"type": "integer"}, {"type": "null"}],
        "title": "Fan Rpm",
        "description": FAN,
        "examples": [1200],
    }
    (family,) = gauges("device_", Cooled, ("fan_rpm",), [(("gpu0",), cooled), (("gpu1",), unread)], ("device",))
    assert family.documentation == FAN
    assert [(one.name, one.labels, one.value) for one in family.samples] == [
        ("memwatch_device_fan_rpm", {"device": "gpu0"}, 900)
    ]


def test_shape_adds_orders_and_leaves_out_fields() -> None:
    found = WIRE.encode(EXAMPLE, "B")

    assert list(found) == ["home", "label", "level", "parts", "sizes", "count"]
    assert found["parts"] == [{"kind": "fast", "size_bytes": None, ABSENT: {"size_bytes": "stale"}}]
    assert found["sizes"] == {"x": 1, "y": None, ABSENT: {"y": "not_read"}}
    assert (found["home"], found["level"], found["count"]) == ("A of B", "high", 1)


def test_reasons_stand_where_the_order_has_them() -> None:
    shape = Shape(Part, order=(ABSENT, "kind", ...))
    by_default, first = Wire(), Wire((Shape(Part, order=("size_bytes", ABSENT, "kind")),))
    part = Part("slow", Absent.STALE)

    assert list(by_default.encode(part)) == ["kind", "size_bytes", ABSENT]
    assert list(first.encode(part)) == ["size_bytes", ABSENT, "kind"]
    assert list(Wire().encode(Part("slow", 1), shape=shape)) == ["kind", "size_bytes"]


def test_description_has_types_words_and_required_fields() -> None:
    description = Description(WIRE)

    assert description.add(WHOLE) == {"$ref": "#/components/schemas/Sum"}
    assert description.definitions.keys() == {"Sum", "Part"}
    whole, part = description.definitions["Sum"], description.definitions["Part"]
    assert whole["description"] == "Parts with a level."
    assert whole["required"] == ["home", "label", "level", "parts", "sizes", "count"]
    assert whole["properties"]["level"]["anyOf"][0]["enum"] == ["low", "medium", "high", "critical"]
    assert whole["properties"]["count"] == {"type": "integer", "title": "Count", "description": "Number of parts."}
    assert part["properties"]["kind"]["enum"] == ["fast", "slow"]
    assert ABSENT in part["properties"]
    assert ABSENT not in whole["properties"]


def test_decoder_restores_what_was_encoded() -> None:
    again = WIRE.decode(Whole, WIRE.encode(EXAMPLE, "B"))

    assert again == Whole(EXAMPLE.label, EXAMPLE.level, EXAMPLE.parts, EXAMPLE.sizes)


def _read_kinds(text: str) -> tuple[Part, ...]:
    return tuple(Part("fast" if one == "fast" else "slow", 0) for one in text.split(","))


def test_form_is_written_read_and_described() -> None:
    form = Form(str, lambda parts: ",".join(one.kind for one in parts), _read_kinds)
    shape = Shape(Whole, forms={"parts": form})
    wire = Wire((shape,))
    encoded = wire.encode(Whole("A", parts=(Part("fast", 0), Part("slow", 0))))
    description = Description(wire)
    description.add(shape)

    assert encoded["parts"] == "fast,slow"
    assert wire.decode(Whole, encoded).parts == (Part("fast", 0), Part("slow", 0))
    assert description.definitions["Whole"]["properties"]["parts"]["type"] == "string"


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        ({}, "Whole without label"),
        ({"label": 7}, "7 is not <class 'str'>"),
        ({"label": "A", "level": "highest"}, "'highest' is not"),
        ({"label": "A", "parts": {}}, "is not tuple"),
        ({"label": "A", "parts": [{"kind": "odd", "size_bytes": 1}]}, "'odd' is not"),
        ({"label": "A", "sizes": [1]}, "is not"),
        ({"label": "A", "secret": 1 << 63}, "is not <class 'int'>"),
        ([], "is not"),
    ],
)
def test_decoder_refuses_anything_else(found: object, fault: str) -> None:
    with pytest.raises((TypeError, KeyError, ValueError), match=fault):
        WIRE.decode(Whole, found)


def test_reason_of_a_newer_version_is_not_available() -> None:
    """A client refused the whole answer of a newer daemon for one word."""
    found = {"kind": "fast", "size_bytes": None, ABSENT: {"size_bytes": "on_strike"}}

    assert WIRE.decode(Part, found) == Part("fast", Absent.NOT_AVAILABLE)
    assert WIRE.decode(Mapping[str, Bytes], {"x": None, ABSENT: {"x": "on_strike"}}) == {"x": Absent.NOT_AVAILABLE}
    with pytest.raises(TypeError, match="7 is not"):
        WIRE.decode(Part, {**found, ABSENT: {"size_bytes": 7}})


def test_decoded_texts_are_printable() -> None:
    assert WIRE.decode(Whole, {"label": "\x1b[2J", "sizes": {"\n": 1}}) == Whole("\\u001b[2J", sizes={"\\u000a": 1})


@pytest.mark.parametrize("name", SAMPLES)
def test_snapshots_are_as_described(name: str) -> None:
    check_answer(to_bytes(snapshot_json(SAMPLES[name]())), "Snapshot")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"seq": "1"}, "no integer"),
        ({"pools": [{}]}, r"\.pools\[\]\.id is missing"),
        ({"further": 1}, r"\.further is not described"),
        ({"self": None}, "no object"),
    ],
)
def test_answer_that_is_not_as_described_is_found(change: dict[str, object], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_answer(to_bytes(snapshot_json(SAMPLES["critical_gb10"]()) | change), "Snapshot")
