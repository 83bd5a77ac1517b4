"""TLS from files: certificate, key, and the CA of client certificates."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memwatch.core.options import InvalidValueError
from memwatch.core.runtime.regular_file import fixed_name

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

# openssl/x509_vfy.h; Python has no name for it.
X509_V_FLAG_NO_CHECK_TIME = 0x200000
# A handshake of TLS 1.3 takes two turns of each end.
MAX_HANDSHAKE_TURNS = 4


def tls_context(cert_file: str, key_file: str | None, client_ca_file: str | None) -> ssl.SSLContext:
    """Build the context of a listener. Raises InvalidValueError if a file cannot be used."""
    import ssl  # loads OpenSSL, which --once and --check-config do not need without TLS

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, cert_file, key_file)
    if client_ca_file is not None:
        try:
            load_authority(context, client_ca_file)
        except OSError as error:
            raise InvalidValueError(f"cannot be used: {describe_reason(error)}", (("client_ca_file",),)) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_certificate(context: ssl.SSLContext, cert_file: str, key_file: str | None) -> None:
    """Load a certificate, also into a context in use: new connections get the new certificate."""
    try:
        load_chain(context, cert_file, key_file)
    except (OSError, ValueError) as error:
        name = "cert_file" if key_file is None else "key_file"
        raise InvalidValueError(
            f"cannot be used with its certificate: {describe_reason(error)}; both must be PEM, "
            "the key without a password",
            ((name,),),
        ) from None


def load_chain(context: ssl.SSLContext, cert_file: str, key_file: str | None) -> None:
    """Load a certificate and its key. Raises OSError and ValueError.

    Their folder may belong to a program that renews them: a FIFO in it would hold up a reload for ever.
    """
    with fixed_name(cert_file) as cert, fixed_name(key_file or cert_file) as key:
        context.load_cert_chain(cert, key, password=b"")  # otherwise OpenSSL prompts on the terminal


def load_authority(context: ssl.SSLContext, ca_file: str) -> None:
    """Trust the certificates of a file. Raises OSError."""
    with fixed_name(ca_file) as name:
        context.load_verify_locations(name)


def client_context(
    ca_file: str | None, cert_file: str | None = None, key_file: str | None = None
) -> ssl.SSLContext:
    """Build the TLS context of a client. Raises InvalidValueError if a file cannot be used."""
    import ssl  # takes 4.5 MiB, which only https needs

    name = "ca_file"
    try:
        with fixed_name(ca_file) if ca_file else contextlib.nullcontext() as authority:
            context = ssl.create_default_context(cafile=authority)
        name = "key_file" if key_file else "cert_file"
        if cert_file is not None:
            load_chain(context, cert_file, key_file)
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            f"cannot be used: {describe_reason(error)}", ((name,),), has_example=False
        ) from None
    return context


def certificate_names(cert_file: str, key_file: str | None) -> tuple[str, ...]:
    """Return the DNS names of a certificate, () if it cannot be read.

    Python decodes only a certificate that a peer has sent and that was verified. Here the peer is in the same
    process and the certificate itself is the trust anchor; an expired one has names, too.
    """
    import ssl

    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | X509_V_FLAG_NO_CHECK_TIME
    try:
        load_certificate(server, cert_file, key_file)
        load_authority(client, cert_file)
        names = shake_hands(server, client).get("subjectAltName", ())
    except (OSError, InvalidValueError) as error:
        log.info("names in %s are not known: %s", cert_file, describe_reason(error))
        return ()
    return tuple(str(value).lower() for kind, value in names if kind == "DNS")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any]:
    """Return the server's certificate after a handshake in memory. Raises ssl.SSLError."""
    import ssl

    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(MAX_HANDSHAKE_TURNS):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0].getpeercert() or {}


def describe_reason(error: Exception) -> str:
    """Return the reason from OpenSSL or the operating system."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).lower().replace("_", " ")


def refuse_bad_tls(cert_file: str | None, key_file: str | None, client_ca_file: str | None) -> None:
    """Load the files as a start would, so that --check-config and a reload report errors."""
    if cert_file is not None:
        tls_context(cert_file, key_file, client_ca_file)
    elif key_file or client_ca_file:
        name = "key_file" if key_file else "client_ca_file"
        raise InvalidValueError(
            'has no effect without cert_file; add cert_file = "/etc/memwatchd/tls.pem"', ((name,),)
        )
