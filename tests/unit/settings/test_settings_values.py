"""Test durations, sizes and addresses as users write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memwatch.core.options import InvalidValueError, Size, duration_text, parse_duration, parse_size
from memwatchd.settings.keys import TcpAddress, UnixAddress, parse_address


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1),
        ("500ms", 0.5),
        ("5m", 300),
        ("5 min", 300),
        ("10min", 600),
        ("1h", 3600),
        ("30d", 30 * 86_400),
        ("1.5 d", 129_600),
        ("2", 2),
        (" 1.5 s ", 1.5),
        (3, 3),
        (0.25, 0.25),
        ("0", 0),
    ],
)
def test_durations_are_parsed(text: object, seconds: float) -> None:
    """ms, s, m, min, h and d are accepted, and a plain number means seconds."""
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1 day", "1h30m", "٣s", "1e3", "nan", True, None, [], float("inf"), 1e300]
)
def test_invalid_durations_are_rejected(text: object) -> None:
    """An invalid duration is rejected, and never taken for 0."""
    with pytest.raises(InvalidValueError):
        parse_duration(text)


@example(86_400_000_000)
@example(30 * 86_400_000_000)
@given(st.integers(min_value=0, max_value=10**14))
def test_durations_survive_a_round_trip(microseconds: int) -> None:
    """A duration that is written and parsed again is the same."""
    duration = timedelta(microseconds=microseconds)

    assert parse_duration(duration_text(duration)) == duration


@given(st.integers(1, 999_999), st.sampled_from([1, 1000, 1 << 10, 1 << 20, 10**9, 1 << 30]))
def test_sizes_survive_a_round_trip(count: int, unit: int) -> None:
    """The text of a size is parsed as the same size: it uses the largest unit that leaves a whole number."""
    size = Size(count * unit)

    assert parse_size(size.text) == size
    assert len(size.text) <= len(f"{int(size)}B")
    assert str(size) == str(int(size))


@given(st.text() | st.floats() | st.integers())
def test_arbitrary_duration_is_parsed_or_rejected(value: object) -> None:
    """No text or number makes the parser raise anything else."""
    try:
        assert parse_duration(value) is not None
    except InvalidValueError:
        return


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:6360", TcpAddress("127.0.0.1", 6360)),
        ("Localhost:0", TcpAddress("localhost", 0)),
        ("[::]:80", TcpAddress("::", 80)),
        ("[fe80::1%eth0]:80", TcpAddress("fe80::1%eth0", 80)),
        ("unix:/run/memwatchd.sock", UnixAddress("/run/memwatchd.sock")),
    ],
)
def test_addresses_are_parsed(text: str, address: object) -> None:
    """HOST:PORT, [IPv6]:PORT and unix:/PATH are parsed and written back unchanged."""
    assert parse_address(text) == address
    assert str(address) == text.lower()


@pytest.mark.parametrize(
    "text",
    ["", ":6360", "localhost", "localhost:", "localhost:x", "localhost:65536", "::1:80", "[::1]", "[1.2.3.4]:80",
     "1.2.3.4.5:80", "256.1.1.1:80", "a b:80", "*:80", "unix:", "unix:run/x", "unix:/", "unix:/" + "x" * 200,
     "http://localhost:80", "-a:80", 80, None],
)  # fmt: skip
def test_invalid_addresses_are_rejected(text: object) -> None:
    """An address that cannot be bound is rejected before any attempt."""
    with pytest.raises(InvalidValueError):
        parse_address(text)


@given(st.text() | st.from_regex(r"\A(unix:|\[)?[a-z0-9.:/%]*\]?:?[0-9]*\Z"))
def test_arbitrary_address_is_parsed_or_rejected(text: str) -> None:
    """An accepted address is parsed the same once more."""
    try:
        address = parse_address(text)
    except InvalidValueError:
        return

    assert parse_address(str(address)) == address
