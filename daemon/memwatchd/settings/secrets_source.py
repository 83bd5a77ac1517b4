"""Where a receiver's secret comes from, and a warning where others can read it. The secret is in no message."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memwatch.notify.apprise import INSTALL, MissingExtraError, load_service
from memwatch.notify.webhook_payload import SECRET_PREFIX, Password, Secret, parse_password, parse_secret
from memwatch.options import InvalidValueError

MAX_SECRET_FILE_BYTES = 4096
CREDENTIALS = "CREDENTIALS_DIRECTORY"


@dataclass(frozen=True, slots=True)
class SecretContext:
    """What reading the settings may look at, and what it noticed there.

    `public_file` is the configuration file's name if every user of the machine may read it.
    """

    environ: Mapping[str, str]
    public_file: str | None
    warnings: list[str] = field(default_factory=list)


def secret_from(value: object, context: SecretContext) -> Secret:
    """A secret from "file:/path", "credential:NAME", "env:NAME" or a literal."""
    if not isinstance(value, str):
        raise InvalidValueError
    if not value.startswith(("file:", "env:", "credential:", SECRET_PREFIX)):
        raise InvalidValueError
    return parse_secret_text(*look_up(value, context))


def look_up(value: str, context: SecretContext) -> tuple[str, str]:
    """The secret that a setting names, and the beginning of a sentence about it."""
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
    """A password or a token from "file:/path", "credential:NAME" or "env:NAME"."""
    text, whose = read_reference(value, context)
    try:
        return parse_password(text)
    except ValueError as error:
        raise InvalidValueError(f"{whose} {error}".strip(), has_example=not whose) from None


def read_reference(value: object, context: SecretContext) -> tuple[str, str]:
    """What "file:/path", "credential:NAME" or "env:NAME" holds; a literal is refused."""
    if not isinstance(value, str) or not value.startswith(("file:", "env:", "credential:")):
        raise InvalidValueError
    return look_up(value, context)


def credential_path(name: str, context: SecretContext) -> str:
    """Where systemd has put a credential (systemd.exec(5), LoadCredential=)."""
    folder = context.environ.get(CREDENTIALS)
    if not folder:
        raise InvalidValueError(
            f"names the credential {name}, and the unit loads none: add LoadCredential={name}:/PATH to it",
            has_example=False,
        )
    if "/" in name or name in ("", ".", ".."):
        raise InvalidValueError(
            f"names the credential {name!r}, and a credential's name has no / in it", has_example=False
        )
    return f"{folder}/{name}"


@dataclass(frozen=True, slots=True)
class AppriseService:
    """An Apprise URL that names a service; it holds tokens and passwords, so only the service's sort is shown."""

    url: str = field(repr=False)

    def __str__(self) -> str:
        return "(hidden)"

    @property
    def target(self) -> Any:  # noqa: ANN401  Apprise's own
        return load_service(self.url)


def service_from(value: object, context: SecretContext) -> AppriseService:
    """An Apprise URL from "file:/path", "credential:NAME", "env:NAME" or a literal."""
    if not isinstance(value, str):
        raise InvalidValueError
    url, whose = look_up(value, context)
    service = AppriseService(url.strip())
    try:
        known = service.target is not None
    except MissingExtraError:
        raise InvalidValueError(f"needs the Apprise library, which is not installed: {INSTALL}") from None
    if not known:
        raise InvalidValueError(
            f"{whose} is no URL that Apprise knows (https://github.com/caronc/apprise/wiki)".strip(),
            has_example=not whose,
        )
    return service


def parse_secret_text(text: str, whose: str) -> Secret:
    try:
        return parse_secret(text)
    except ValueError as error:
        raise InvalidValueError(f"{whose} {error}".strip(), has_example=not whose) from None


def secret_in(path: str, context: SecretContext) -> str:
    if not path.startswith("/"):
        raise InvalidValueError(
            f"names the file {path!r}, and must name it from the root, for example file:/etc/memwatchd/secret",
            has_example=False,
        )
    try:
        # Not blocking: a pipe nobody writes to would hold the start up for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name has a NUL in it"
        raise InvalidValueError(
            f"names the file {path!r}, which cannot be read ({reason})", has_example=False
        ) from None
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise InvalidValueError(f"names {path}, which is not a regular file", has_example=False)
        if mode & stat.S_IROTH:
            warn_public(context, path)
        return file.read(MAX_SECRET_FILE_BYTES).decode("ascii", "replace")


def warn_public(context: SecretContext, path: str) -> None:
    warning = f"every user of this machine can read the secret in {path}; chmod o-r {path} ends that"
    if warning not in context.warnings:
        context.warnings.append(warning)
