"""TLS from files: certificate, key, and the CA of client certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.options import InvalidValueError

if TYPE_CHECKING:
    import ssl


def tls_context(cert_file: str, key_file: str | None, client_ca_file: str | None) -> ssl.SSLContext:
    """Build the context of a listener. Raises InvalidValueError if a file cannot be used."""
    import ssl  # loads OpenSSL, which --once and --check-config do not need without TLS

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
    """Load a certificate, also into a context in use: new connections get the new certificate."""
    try:
        context.load_cert_chain(cert_file, key_file, password=b"")  # otherwise OpenSSL prompts on the terminal
    except (OSError, ValueError) as error:
        name = "cert_file" if key_file is None else "key_file"
        raise InvalidValueError(
            f"cannot be used with its certificate: {describe_reason(error)}; both must be PEM, "
            "the key without a password",
            ((name,),),
        ) from None


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
