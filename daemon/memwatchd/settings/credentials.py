"""Secrets, credentials of the unit and certificates that settings name. Warns if other users can read a secret.

No message contains a secret.
"""

from __future__ import annotations

import contextlib
import grp
import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memwatch.core.options import InvalidValueError
from memwatch.core.runtime.regular_file import NOT_REGULAR, NotRegularError, fixed_name, open_regular
from memwatch_monitor.notify.http_post import Password, Proxy, parse_password, parse_proxy
from memwatch_monitor.notify.webhook import SECRET_PREFIX, Secret, parse_secret
from memwatchd.settings.keys import why_unreadable

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

MAX_SECRET_FILE_BYTES = 4096
REFERENCES = ("file:", "env:", "credential:")
CREDENTIALS = "CREDENTIALS_DIRECTORY"


@dataclass(frozen=True, slots=True)
class SecretContext:
    """Environment for looking up secrets, and the warnings found.

    `public_file` is the configuration file's name if every user of the machine may read it.
    """

    environ: Mapping[str, str]
    public_file: str | None
    warnings: list[str] = field(default_factory=list)


def secret_from(value: object, context: SecretContext) -> Secret:
    """Read a secret from "file:/path", "credential:NAME", "env:NAME" or a literal."""
    if not isinstance(value, str):
        raise InvalidValueError
    if not value.startswith((*REFERENCES, SECRET_PREFIX)):
        raise InvalidValueError
    return parse_secret_text(*look_up(value, context))


def look_up(value: str, context: SecretContext) -> tuple[str, str]:
    """Return the secret that a setting names, and the beginning of an error message about it."""
    if value.startswith("file:/"):
        path = value.removeprefix("file:")
        return secret_in(path, context), f"names the file {path}, which"
    if value.startswith("file:"):
        return secret_in(value.removeprefix("file:"), context), ""
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        if name not in context.environ:
            raise InvalidValueError(f"names the environment variable {name}, which is not set", has_example=False)
        return context.environ[name], f"names the environment variable {name}, which"
    if value.startswith("credential:"):
        return look_up(f"file:{credential_path(value.removeprefix('credential:'), context)}", context)
    if context.public_file:
        warn_public(context, context.public_file)
    return value, ""


def password_from(value: object, context: SecretContext) -> Password:
    """Read a password or a token from "file:/path", "credential:NAME" or "env:NAME"."""
    text, whose = read_reference(value, context)
    try:
        return parse_password(text)
    except ValueError as error:
        raise InvalidValueError(f"{whose} {error}".strip(), has_example=not whose) from None


def read_reference(value: object, context: SecretContext) -> tuple[str, str]:
    """Read "file:/path", "credential:NAME" or "env:NAME". A literal is rejected."""
    if not isinstance(value, str) or not value.startswith(REFERENCES):
        raise InvalidValueError
    return look_up(value, context)


def credential_path(name: str, context: SecretContext) -> str:
    """Return the path of a credential from systemd (systemd.exec(5), LoadCredential=)."""
    folder = context.environ.get(CREDENTIALS)
    if not folder:
        raise InvalidValueError(
            f"names the credential {name}, but the unit loads none: add LoadCredential={name}:/PATH to it",
            has_example=False,
        )
    if "/" in name or name in ("", ".", ".."):
        raise InvalidValueError(
            f"names the credential {name!r}, but a credential's name must not contain /", has_example=False
        )
    return f"{folder}/{name}"


@dataclass(frozen=True, slots=True)
class AppriseService:
    """An Apprise URL of a service. It contains tokens and passwords and is never shown."""

    url: str = field(repr=False)

    def __str__(self) -> str:
        return "(hidden)"

    @property
    def target(self) -> Any:  # noqa: ANN401  Apprise's own
        from memwatch_monitor.notify.apprise import load_service  # if there is one

        return load_service(self.url)


def service_from(value: object, context: SecretContext) -> AppriseService:
    """Read an Apprise URL from "file:/path", "credential:NAME", "env:NAME" or a literal."""
    if not isinstance(value, str):
        raise InvalidValueError
    from memwatch_monitor.notify.apprise import INSTALL, MissingExtraError

    url, whose = look_up(value, context)
    service = AppriseService(url.strip())
    try:
        known = service.target is not None
    except MissingExtraError:
        raise InvalidValueError(f"needs the Apprise library, which is not installed: {INSTALL}") from None
    if not known:
        raise InvalidValueError(
            f"{whose} is not a URL that Apprise supports (https://github.com/caronc/apprise/wiki)".strip(),
            has_example=not whose,
        )
    return service


def proxy_from(value: object, context: SecretContext) -> Proxy:
    """Read the URL of a proxy from "file:/path", "credential:NAME", "env:NAME" or a literal."""
    if not isinstance(value, str):
        raise InvalidValueError
    has_secret = value.startswith(REFERENCES) or "@" in value
    url, whose = look_up(value, context) if has_secret else (value, "")
    try:
        return parse_proxy(url.strip())
    except ValueError as error:
        raise InvalidValueError(f"{whose} {error}".strip(), has_example=not whose) from None


def parse_secret_text(text: str, whose: str) -> Secret:
    try:
        return parse_secret(text)
    except ValueError as error:
        raise InvalidValueError(f"{whose} {error}".strip(), has_example=not whose) from None


def secret_in(path: str, context: SecretContext) -> str:
    if not path.startswith("/"):
        raise InvalidValueError(
            f"names the file {path!r}; use an absolute path, for example file:/etc/memwatchd/secret",
            has_example=False,
        )
    try:
        with open_regular(path) as (file, status):
            if status.st_mode & stat.S_IROTH:
                warn_public(context, path)
            return file.read(MAX_SECRET_FILE_BYTES).decode("ascii", "replace")
    except NotRegularError:
        raise InvalidValueError(f"names {path}, which {NOT_REGULAR}", has_example=False) from None
    except (OSError, ValueError) as error:
        why = why_unreadable(error)
        raise InvalidValueError(f"names the file {path!r}, which cannot be read {why}", has_example=False) from None


def warn_public(context: SecretContext, path: str) -> None:
    warning = f"every user of this machine can read the secret in {path}; run: {advise_mode(path)}"
    if warning not in context.warnings:
        context.warnings.append(warning)


def advise_mode(path: str) -> str:
    """Return the command after which the daemon can read the file, and other users cannot."""
    try:
        found = os.stat(path)
    except OSError:
        return f"chmod o-r {path}"
    group = os.getegid()
    if os.geteuid() in (0, found.st_uid) or (found.st_gid == group and found.st_mode & stat.S_IRGRP):
        return f"chmod o-r {path}"
    try:
        name = grp.getgrgid(group).gr_name
    except KeyError:
        name = str(group)
    return f"chown root:{name} {path} && chmod 640 {path}"


# TLS from files: certificate, key, and the CA of client certificates.

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
