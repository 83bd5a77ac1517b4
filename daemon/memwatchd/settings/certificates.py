"""TLS from files: certificate, key, and whose clients are let in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.options import InvalidValueError

if TYPE_CHECKING:
    import ssl


def tls_context(cert_file: str, key_file: str | None, client_ca_file: str | None) -> ssl.SSLContext:
    """What a listener speaks. Raises Refused where a file cannot be used."""
    import ssl  # OpenSSL: --once and --check-config do without, where there is no TLS

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, cert_file, key_file)
    if client_ca_file is not None:
        try:
            context.load_verify_locations(client_ca_file)
        except OSError as error:
            raise InvalidValueError(f"cannot be used: {describe_reason(error)}", (("client_ca_file",),)) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_certificate(context: ssl.SSLContext, cert_file: str, key_file: str | None) -> None:
    """Also into a context in use: connections from now on see the new certificate."""
    try:
        context.load_cert_chain(cert_file, key_file, password=b"")  # else OpenSSL asks at the terminal for one
    except (OSError, ValueError) as error:
        name = "cert_file" if key_file is None else "key_file"
        raise InvalidValueError(
            f"cannot be used with its certificate: {describe_reason(error)}; both are PEM, "
            "the key without password",
            ((name,),),
        ) from None


def describe_reason(error: Exception) -> str:
    """OpenSSL's word, or the system's."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).lower().replace("_", " ")


def refuse_bad_tls(cert_file: str | None, key_file: str | None, client_ca_file: str | None) -> None:
    """Try what a start would use, so that --check-config and a reload know."""
    if cert_file is not None:
        tls_context(cert_file, key_file, client_ca_file)
    elif key_file or client_ca_file:
        name = "key_file" if key_file else "client_ca_file"
        raise InvalidValueError(
            'does nothing without cert_file; add cert_file = "/etc/memwatchd/tls.pem"', ((name,),)
        )
