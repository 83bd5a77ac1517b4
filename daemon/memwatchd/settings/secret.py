"""Where a webhook's secret comes from, and a warning where others can read it. The secret is in no message."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ValidationInfo

from memwatch_web.webhooks import SECRET_PREFIX, Secret, secret_of
from memwatchd.settings.values import Refused

SECRET_FILE_MOST_BYTES = 4096
WEBHOOK = "webhook secret"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What reading the settings may look at, and what it noticed there.

    `public_file` is the configuration file's name if every user of the machine may read it.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    public_file: str | None = None
    warnings: list[str] = field(default_factory=list)


def secret_from(value: object, info: ValidationInfo) -> Secret:
    """A secret from "file:/path", "env:NAME" or a literal."""
    if isinstance(value, Secret):
        return value
    if isinstance(value, str) and value.startswith(SECRET_PREFIX):
        around = surroundings_of(info)
        if around.public_file:
            warn_public(around, around.public_file, WEBHOOK)
        return parsed(value, "")
    return parsed(*kept_text(value, info, WEBHOOK))


def surroundings_of(info: ValidationInfo) -> Surroundings:
    return info.context if isinstance(info.context, Surroundings) else Surroundings()


def kept_text(value: object, info: ValidationInfo, what: str) -> tuple[str, str]:
    """What "file:/path" or "env:NAME" holds, and words for where that was."""
    if not isinstance(value, str):
        raise Refused
    around = surroundings_of(info)
    if value.startswith("file:"):
        path = value.removeprefix("file:")
        return secret_in(path, around, what), f"names the file {path}, which"
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        if name not in around.environ:
            raise Refused(f"names the environment variable {name}, which is not set")
        return around.environ[name], f"names the environment variable {name}, which"
    raise Refused


def parsed(text: str, whose: str) -> Secret:
    try:
        return secret_of(text)
    except ValueError as error:
        raise Refused(f"{whose} {error}".strip()) from None


def secret_in(path: str, around: Surroundings, what: str) -> str:
    if not path.startswith("/"):
        raise Refused(
            f"names the file {path!r}, and must name it from the root, for example file:/etc/memwatchd/secret"
        )
    try:
        # Not blocking: a pipe nobody writes to would hold the start up for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name has a NUL in it"
        raise Refused(f"names the file {path!r}, which cannot be read ({reason})") from None
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise Refused(f"names {path}, which is not a regular file")
        if mode & stat.S_IROTH:
            warn_public(around, path, what)
        return file.read(SECRET_FILE_MOST_BYTES).decode("ascii", "replace")


def warn_public(around: Surroundings, path: str, what: str) -> None:
    warning = f"every user of this machine can read the {what} in {path}; chmod o-r {path} ends that"
    if warning not in around.warnings:
        around.warnings.append(warning)
