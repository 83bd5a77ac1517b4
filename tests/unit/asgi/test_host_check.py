"""Names in the Host header: the allow-list, which prevents DNS rebinding, and the names of this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memwatch.core.linux.files import Roots
from memwatch.core.linux.host_names import OwnNames, find_names
from memwatch_web.asgi.access import is_allowed, parse_host

HOSTS = {"localhost", "spark-1", "gpu.example.org"}


@pytest.mark.parametrize(
    "header",
    [
        "localhost",
        "localhost:6360",
        "LOCALHOST.",
        "127.0.0.1:6360",
        "[::1]:6360",
        "192.168.7.9",
        "spark-1.local:80",
    ],
)
def test_own_names_and_addresses_are_allowed(header: str) -> None:
    assert is_allowed(header, HOSTS)


@pytest.mark.parametrize(
    "header",
    ["evil.example", "localhost.evil.example", "evil.example:6360", "", "[::1", "127.0.0.1.evil.example", "0x7f.1"],
)
def test_other_names_are_refused(header: str) -> None:
    """DNS rebinding needs a name that the attacker controls."""
    assert not is_allowed(header, HOSTS) or parse_host(header) == "::1"


@given(st.text(max_size=200))
def test_any_header_is_allowed_or_refused(header: str) -> None:
    """Malformed headers raise no error."""
    assert is_allowed(header, HOSTS) in (True, False)


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("gpu1.example.com", True),
        ("GPU1.example.com:6360", True),
        ("a.b.example.com.", True),
        ("example.com", True),
        ("node.lab.example.org", True),
        ("a.node.lab.example.org", False),
        ("lab.example.org", False),
        ("badexample.com", False),
        ("example.com.evil.example", False),
        ("evil.example#.example.com", False),
        ("evil.example/.example.com", False),
        ("user@gpu1.example.com", False),
        (".example.com", False),
        ("a..example.com", False),
    ],
)
def test_domain_covers_names_below_it_only(header: str, allowed: bool) -> None:
    """A wildcard of a certificate covers one label."""
    assert is_allowed(header, {".example.com", "*.lab.example.org"}) is allowed


LABELS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=20)
NAMES = st.lists(LABELS, min_size=1, max_size=6).map(".".join)


@given(NAMES, st.sampled_from(["", ":1", ":6360", "."]))
def test_name_is_allowed_exactly_below_the_domain(name: str, rest: str) -> None:
    """An attacker chooses any name outside the domain."""
    assume(not name.removesuffix(".local").replace(".", "").isdigit())

    expected = f".{name}".endswith(".example.com")

    assert is_allowed(name + rest, {".example.com"}) is expected
    assert is_allowed(f"{name}.example.com{rest}", {".example.com"}) is (len(name) + len(".example.com") <= 253)


@given(st.text(max_size=300).map(lambda text: f"{text}.example.com"))
def test_text_before_a_domain_must_be_a_name(header: str) -> None:
    host = parse_host(header)

    assert not is_allowed(header, {".example.com"}) or re.fullmatch(r"[a-z0-9_.-]+", host)


@pytest.mark.parametrize(
    ("kernel", "hostname", "hosts", "expected"),
    [
        ("gpu1", "gpu1\n", "127.0.0.1 localhost\n127.0.1.1 gpu1.example.com gpu1\n", {"gpu1", "gpu1.example.com"}),
        ("GPU1.example.com", "", "", {"gpu1", "gpu1.example.com"}),
        (
            "gpu1",
            "",
            "10.0.0.7\tGPU1.example.com. gpu1 scratch # gpu1 old\n",
            {"gpu1", "gpu1.example.com", "scratch"},
        ),
        ("gpu1", "", "10.0.0.8 gpu2.example.com gpu2\n10.0.0.9 gpu10.example.com gpu10\n", {"gpu1"}),
        ("dhcp-7", "gpu1\n", "10.0.0.7 gpu1.example.com gpu1\n", {"dhcp-7", "gpu1", "gpu1.example.com"}),
        # The names that a line adds attract no further lines.
        ("gpu1", "", "10.0.0.7 gpu1 shared\n10.0.0.8 shared evil.example\n", {"gpu1", "shared"}),
        # A machine without its own name gets no names of localhost's lines.
        ("localhost", "localhost\n", "127.0.0.1 localhost evil.example\n", set()),
        ("gpu1", "", "# gpu1 evil.example\n\n10.0.0.7\n", {"gpu1"}),
        ("gpu1", "\0\n", "10.0.0.7 gpu1 a/b ü\n", {"gpu1"}),
    ],
)
def test_own_names_are_those_of_kernel_and_etc(kernel: str, hostname: str, hosts: str, expected: set[str]) -> None:
    assert find_names(kernel, hostname, hosts) == expected


def test_changed_files_and_names_are_read_again(tmp_path: Path) -> None:
    etc, kernel = tmp_path / "etc", ["gpu1"]
    etc.mkdir()
    names = OwnNames(Roots(rootfs=tmp_path), lambda: kernel[-1])

    found = [names()]
    (etc / "hosts").write_text("10.0.0.7 gpu1.example.com gpu1\n")
    found.append(names())
    kernel.append("gpu2")
    found.append(names())

    assert found == [{"gpu1"}, {"gpu1", "gpu1.example.com"}, {"gpu2"}]


def test_large_hosts_file_is_read_in_part(tmp_path: Path) -> None:
    """Own lines come first; lists of advertisers follow."""
    (tmp_path / "etc").mkdir()
    advertisers = "0.0.0.0 ads.example\n" * 100_000
    (tmp_path / "etc/hosts").write_text(f"10.0.0.7 gpu1.example.com gpu1\n{advertisers}10.0.0.8 gpu1 late\n")

    assert OwnNames(Roots(rootfs=tmp_path), lambda: "gpu1")() == {"gpu1", "gpu1.example.com"}
