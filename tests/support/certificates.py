"""Certificates for tests, created by openssl: an authority, and certificates signed by it."""

from __future__ import annotations

import ssl
import subprocess
import time
from pathlib import Path

from msgspec import Struct

NEEDED_PROGRAMS = ("openssl",)


class Certificate(Struct, frozen=True):
    """Certificate and its key, as PEM files."""

    cert: Path
    key: Path

    def context_of_client(self, shown: Certificate | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority and presents `shown`."""
        context = ssl.create_default_context(cafile=str(self.cert))
        if shown is not None:
            context.load_cert_chain(shown.cert, shown.key)
        return context


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def authority(folder: Path, name: str = "ca") -> Certificate:
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign", "-keyout", made.key, "-out", made.cert,
    )  # fmt: skip
    return made


def signed_by(
    ca: Certificate, name: str = "server", names: str = "DNS:localhost,IP:127.0.0.1", days: int = 2
) -> Certificate:
    """Create a certificate, by default for localhost. With less than one day it has expired."""
    folder = ca.cert.parent
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={names}\n")
    openssl(
        "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
        "-keyout", made.key, "-out", request,
    )  # fmt: skip
    openssl(
        "x509", "-req", "-in", request, "-CA", ca.cert, "-CAkey", ca.key, "-days", str(days),
        "-extfile", extensions, "-out", made.cert,
    )  # fmt: skip
    return made


def tls_config(server: Certificate, ca: Certificate | None = None) -> str:
    """Return the [web.tls] section for a server that requires certificates of `ca`, if given."""
    lines = ["[web.tls]", f'cert_file = "{server.cert}"', f'key_file = "{server.key}"']
    return "\n".join([*lines, f'client_ca_file = "{ca.cert}"'] if ca else lines)


def self_signed(folder: Path, name: str = "localhost") -> Path:
    """Create a self-signed certificate, with its key in the same file."""
    file, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
         "-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key), "-out", str(file)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    file.write_text(key.read_text() + file.read_text())
    return file


def expired(folder: Path) -> Path:
    """Create a certificate for localhost that has expired on return, with its key in the same file."""
    file, key, request = folder / "expired.pem", folder / "expired.key", folder / "expired.csr"
    for command in (
        ["req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(request)],
        ["x509", "-req", "-in", str(request), "-signkey", str(key), "-days", "0", "-copy_extensions", "copy",
         "-out", str(file)],
    ):  # fmt: skip
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    file.write_text(key.read_text() + file.read_text())
    time.sleep(1.1)
    return file
