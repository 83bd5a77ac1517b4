"""DNS names of the server's own certificate."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memwatch.core.options import InvalidValueError
from memwatchd.settings.credentials import certificate_names, client_context, tls_context
from support.certificates import authority, signed_by

pytestmark = pytest.mark.process


def test_names_are_the_dns_names_of_the_first_certificate(tmp_path: Path) -> None:
    """Addresses are no names, and numeric hosts are allowed anyway. A chain has the names of its server only."""
    ca = authority(tmp_path)
    made = signed_by(ca, names="DNS:GPU1.example.com,DNS:*.example.com,IP:192.0.2.1,email:a@b.example")
    made.cert.write_bytes(made.cert.read_bytes() + ca.cert.read_bytes())

    assert certificate_names(str(made.cert), str(made.key)) == ("gpu1.example.com", "*.example.com")


def test_expired_certificate_has_names(tmp_path: Path) -> None:
    """Its owner has chosen the names, whatever the time is. The key and certificate may be one file."""
    made = signed_by(authority(tmp_path), names="DNS:gpu1.example.com", days=-1)
    both = tmp_path / "both.pem"
    both.write_bytes(made.cert.read_bytes() + made.key.read_bytes())

    assert certificate_names(str(both), None) == ("gpu1.example.com",)


def test_certificate_without_names_or_file_has_none(tmp_path: Path) -> None:
    made = authority(tmp_path)

    assert certificate_names(str(made.cert), str(made.key)) == ()
    assert certificate_names(str(tmp_path / "gone.pem"), None) == ()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_certificate_that_is_no_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    """The folder may belong to a program that renews certificates, and a reload must end."""
    made, odd = signed_by(authority(tmp_path)), tmp_path / kind
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "device":
        odd.symlink_to("/dev/zero")
    else:
        odd.mkdir()
    good, bad = (str(made.cert), str(made.key)), str(odd)
    for cert, key, ca in ((bad, None, None), (good[0], bad, None), (*good, bad)):
        with pytest.raises(InvalidValueError, match="is not a regular file"):
            tls_context(cert, key, ca)
        with pytest.raises(InvalidValueError, match="is not a regular file"):
            client_context(ca, cert, key)
    assert certificate_names(bad, None) == ()
    assert tls_context(*good, good[0])
    assert client_context(good[0], *good)
