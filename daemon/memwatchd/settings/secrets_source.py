"""Where a receiver's secret comes from, and a warning where others can read it. The secret is in no message."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memwatch.notify.apprise import INSTALL, NotInstalled, service_of
from memwatch.notify.webhook_payload import SECRET_PREFIX, Password, Secret, password_of, secret_of
from memwatch.options import Refused

SECRET_FILE_MOST_BYTES = 4096
CREDENTIALS = "CREDENTIALS_DIRECTORY"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What reading the settings may look at, and what it noticed there.

    `public_file` is the configuration file's name if every user of the machine may read it.
    """

    environ: Mapping[str, str]
    public_file: str | None
    warnings: list[str] = field(default_factory=list)


def secret_from(value: object, around: Surroundings) -> Secret:
    """A secret from "file:/path", "credential:NAME", "env:NAME" or a literal."""
    if not isinstance(value, str):
        raise Refused
    if not value.startswith(("file:", "env:", "credential:", SECRET_PREFIX)):
        raise Refused
    return parsed(*looked_up(value, around))


def looked_up(value: str, around: Surroundings) -> tuple[str, str]:
    """The secret that a setting names, and the beginning of a sentence about it."""
    if value.startswith("file:/"):
        path = value.removeprefix("file:")
        return secret_in(path, around), f"names the file {path}, which"
    if value.startswith("file:"):
        return secret_in(value.removeprefix("file:"), around), ""
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        if name not in around.environ:
            raise Refused(f"names the environment variable {name}, which is not set", has_example=False)
        return around.environ[name], f"names the environment variable {name}, which"
    if value.startswith("credential:"):
        return looked_up(f"file:{credential_path(value.removeprefix('credential:'), around)}", around)
    if around.public_file:
        warn_public(around, around.public_file)
    return value, ""


def password_from(value: object, around: Surroundings) -> Password:
    """A password or a token from "file:/path", "credential:NAME" or "env:NAME"."""
    text, whose = kept_elsewhere(value, around)
    try:
        return password_of(text)
    except ValueError as error:
        raise Refused(f"{whose} {error}".strip(), has_example=not whose) from None


def kept_elsewhere(value: object, around: Surroundings) -> tuple[str, str]:
    """What "file:/path", "credential:NAME" or "env:NAME" holds; a literal is refused."""
    if not isinstance(value, str) or not value.startswith(("file:", "env:", "credential:")):
        raise Refused
    return looked_up(value, around)


def credential_path(name: str, around: Surroundings) -> str:
    """Where systemd has put a credential (systemd.exec(5), LoadCredential=)."""
    folder = around.environ.get(CREDENTIALS)
    if not folder:
        raise Refused(
            f"names the credential {name}, and the unit loads none: add LoadCredential={name}:/PATH to it",
            has_example=False,
        )
    if "/" in name or name in ("", ".", ".."):
        raise Refused(f"names the credential {name!r}, and a credential's name has no / in it", has_example=False)
    return f"{folder}/{name}"


@dataclass(frozen=True, slots=True)
class Service:
    """An Apprise URL that names a service; it holds tokens and passwords, so only the service's sort is shown."""

    url: str = field(repr=False)

    def __str__(self) -> str:
        return "(hidden)"

    @property
    def target(self) -> Any:  # noqa: ANN401  Apprise's own
        return service_of(self.url)


def service_from(value: object, around: Surroundings) -> Service:
    """An Apprise URL from "file:/path", "credential:NAME", "env:NAME" or a literal."""
    if not isinstance(value, str):
        raise Refused
    url, whose = looked_up(value, around)
    service = Service(url.strip())
    try:
        known = service.target is not None
    except NotInstalled:
        raise Refused(f"needs the Apprise library, which is not installed: {INSTALL}") from None
    if not known:
        raise Refused(
            f"{whose} is no URL that Apprise knows (https://github.com/caronc/apprise/wiki)".strip(),
            has_example=not whose,
        )
    return service


def parsed(text: str, whose: str) -> Secret:
    try:
        return secret_of(text)
    except ValueError as error:
        raise Refused(f"{whose} {error}".strip(), has_example=not whose) from None


def secret_in(path: str, around: Surroundings) -> str:
    if not path.startswith("/"):
        raise Refused(
            f"names the file {path!r}, and must name it from the root, for example file:/etc/memwatchd/secret",
            has_example=False,
        )
    try:
        # Not blocking: a pipe nobody writes to would hold the start up for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name has a NUL in it"
        raise Refused(f"names the file {path!r}, which cannot be read ({reason})", has_example=False) from None
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise Refused(f"names {path}, which is not a regular file", has_example=False)
        if mode & stat.S_IROTH:
            warn_public(around, path)
        return file.read(SECRET_FILE_MOST_BYTES).decode("ascii", "replace")


def warn_public(around: Surroundings, path: str) -> None:
    warning = f"every user of this machine can read the secret in {path}; chmod o-r {path} ends that"
    if warning not in around.warnings:
        around.warnings.append(warning)
