"""Durations and addresses as people write them: read, or refused."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memwatch.options import Refused, Size, bytes_of, duration_of, duration_text
from memwatchd.settings.values import TcpAddress, UnixAddress, address_of


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
def test_durations_are_written_in_the_usual_ways(text: object, seconds: float) -> None:
    """ms, s, m, min, h and d are understood, and a plain number means seconds."""
    assert duration_of(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1 day", "1h30m", "٣s", "1e3", "nan", True, None, [], float("inf"), 1e300]
)
def test_other_durations_are_refused(text: object) -> None:
    """What is no duration is refused, and never taken for 0."""
    with pytest.raises(Refused):
        duration_of(text)


@example(86_400_000_000)
@example(30 * 86_400_000_000)
@given(st.integers(min_value=0, max_value=10**14))
def test_durations_survive_being_written(microseconds: int) -> None:
    """A duration that is written and read again is the same."""
    duration = timedelta(microseconds=microseconds)

    assert duration_of(duration_text(duration)) == duration


@given(st.integers(1, 999_999), st.sampled_from([1, 1000, 1 << 10, 1 << 20, 10**9, 1 << 30]))
def test_sizes_survive_being_written(count: int, unit: int) -> None:
    """What a size says of itself is read as the same size: the largest unit that leaves it whole."""
    size = Size(count * unit)

    assert bytes_of(size.text) == size
    assert len(size.text) <= len(f"{int(size)}B")
    assert str(size) == str(int(size))


@given(st.text() | st.floats() | st.integers())
def test_any_duration_is_read_or_refused(value: object) -> None:
    """No text or number makes the duration parser raise anything else."""
    try:
        assert duration_of(value) is not None
    except Refused:
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
def test_addresses_are_written_in_the_usual_ways(text: str, address: object) -> None:
    """HOST:PORT, [IPv6]:PORT and unix:/PATH are understood and written back as they were."""
    assert address_of(text) == address
    assert str(address) == text.lower()


@pytest.mark.parametrize(
    "text",
    ["", ":6360", "localhost", "localhost:", "localhost:x", "localhost:65536", "::1:80", "[::1]", "[1.2.3.4]:80",
     "1.2.3.4.5:80", "256.1.1.1:80", "a b:80", "*:80", "unix:", "unix:run/x", "unix:/", "unix:/" + "x" * 200,
     "http://localhost:80", "-a:80", 80, None],
)  # fmt: skip
def test_other_addresses_are_refused(text: object) -> None:
    """What cannot be listened on is refused before anybody tries."""
    with pytest.raises(Refused):
        address_of(text)


@given(st.text() | st.from_regex(r"\A(unix:|\[)?[a-z0-9.:/%]*\]?:?[0-9]*\Z"))
def test_any_address_is_read_or_refused(text: str) -> None:
    """Whatever is accepted is an address that reads the same once more."""
    try:
        address = address_of(text)
    except Refused:
        return

    assert address_of(str(address)) == address
