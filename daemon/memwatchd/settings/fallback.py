"""Settings of a start. A daemon that is down because of its configuration is a failure that remains unseen.

What a receiver names and cannot be used switches that receiver off. A configuration that is refused is replaced by
the last one that was not. Access is never wider than before: if [web] is at fault, only this machine has access.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.options import InvalidValueError, KeyPath
from memwatch_web.asgi.login import PasswordHash, Token
from memwatchd.settings.alerts import CHANNELS, HttpReceiver
from memwatchd.settings.credentials import SecretContext
from memwatchd.settings.keys import TcpAddress, UnixAddress, parse_address
from memwatchd.settings.load import (
    CONFIG,
    DEFAULT_FILE,
    PREFIX,
    SYSTEMD_STATE,
    MergedInput,
    SettingsError,
    build_settings,
    load,
    merge,
    parse_given,
    secret_variables,
)
from memwatchd.settings.schema import Given, Sections, Settings
from memwatchd.settings.validation import Checker, Mistake, Problem, describe_mistake
from memwatchd.settings.web import Auth, Web, is_local
from memwatchd.state_dir import read_state_file, write_state_file

NAME = "configuration.json"
VERSION = 1
MAX_BYTES = 512 * 1024


class LastGood(Struct, frozen=True):
    """`unix`: when memwatchd took it. `token`: digest of the bearer token, in hexadecimal. `users`: the hashes."""

    unix: float
    given: Given
    token: str | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    by_certificate: bool = False
    version: int = VERSION


def read_last_good(folder: Path | None) -> LastGood | None:
    """Return the last good configuration, None if there is none that only root and this user can have written."""
    if folder is None:
        return None
    try:
        last = msgspec.json.decode(read_state_file(folder, NAME, MAX_BYTES), type=LastGood)
    except (OSError, ValueError):
        return None
    return last if last.version == VERSION else None


def keep_last_good(folder: Path, last: LastGood) -> None:
    """Write the configuration unless the folder already has it. Raises OSError."""
    before = read_last_good(folder)
    if before is not None and msgspec.structs.replace(before, unix=last.unix) == last:
        return
    write_state_file(folder, NAME, msgspec.json.encode(last))


# Each round leaves out at least one table or key.
MAX_ROUNDS = 200
# What is watched: without these keys it would be another machine.
ROOTS = frozenset({("sampling", name) for name in ("procfs", "sysfs", "rootfs")})
# Sections of a part of their own, with the words for it.
PARTS = {"otlp": "the push over OTLP is off", "discovery": "mDNS is off"}
WHERE_HTTP = tuple(name for name, kind in CHANNELS.items() if issubclass(kind, HttpReceiver))


def load_for_start(
    flags: Mapping[str, Any], environ: Mapping[str, str], *, default_file: Path = DEFAULT_FILE
) -> Settings:
    """Return the settings to start with; `problems` has a sentence for each that is not in force.

    Raises SettingsError if nothing can take their place: at a first start, for a flag, or during replay.
    """
    had_file = had_default_file(flags, environ, default_file)
    try:
        return load(flags, environ, default_file=default_file, had_file=had_file)
    except SettingsError as error:
        refused = error
    if refused.usage or flags.get("demo") or flags.get("replay"):
        raise refused
    problems: list[Problem] = []
    merged = merge(flags, environ, default_file, problems, had_file=had_file)
    last = read_last_good(find_state_folder(flags, environ, merged.values))
    found = None if problems else Repair(merged, environ, last).settings()
    if found is None and last is not None:
        found = use_last(flags, environ, last, refused)
    if found is None:
        raise refused
    return found


def had_default_file(flags: Mapping[str, Any], environ: Mapping[str, str], default_file: Path) -> bool:
    """Return True if the last start read the default file. If it is missing now, it cannot name a state folder."""
    if flags.get("demo") or flags.get("replay"):
        return False
    last = read_last_good(find_state_folder(flags, environ, {}))
    return last is not None and last.given.file == str(default_file)


def use_last(
    flags: Mapping[str, Any], environ: Mapping[str, str], last: LastGood, refused: SettingsError
) -> Settings | None:
    """Return the settings of the last good configuration. Keys that this version refuses are left out."""
    given = parse_given(last.given)
    wanted = {CONFIG, *secret_variables(given.values)}
    then = {name: value for name, value in environ.items() if not name.startswith(PREFIX) or name in wanted}
    then |= last.given.variables
    when = datetime.fromtimestamp(last.unix, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    first, *others = refused.problems
    why = (f"memwatchd runs with its configuration of {when}, because that of now is refused: {first}", *others)
    for leaves_out_keys in (False, True):
        problems: list[Problem] = []
        merged = merge(flags, then, DEFAULT_FILE, problems, parse_given(last.given))
        found = None if problems else Repair(merged, environ, last, leaves_out_keys).settings()
        if found is not None:
            return replace(found, problems=(*why, *found.problems))
    return None


def find_state_folder(flags: Mapping[str, Any], environ: Mapping[str, str], values: object) -> Path | None:
    """Return the state folder as far as it is known. It does not depend on other settings."""
    section = values.get("state") if isinstance(values, dict) else None
    inside = section.get("dir") if isinstance(section, dict) else None
    names = (flags.get("state_dir"), environ.get("MEMWATCHD_STATE_DIR"), inside)
    systemd = environ.get(SYSTEMD_STATE, "").partition(":")[0]
    name = next((one for one in (*names, systemd) if one), None)
    return Path(os.path.abspath(name)) if isinstance(name, str) and "\0" not in name else None


class Repair:
    """Leaves out what cannot be used until the rest is valid."""

    def __init__(
        self,
        merged: MergedInput,
        environ: Mapping[str, str],
        last: LastGood | None,
        leaves_out_keys: bool = False,
    ) -> None:
        self._merged = merged
        self._context = SecretContext(environ, str(merged.file) if merged.toml.public else None)
        self._last = last
        self._leaves_out_keys = leaves_out_keys
        self._problems: list[str] = []
        self._listen: object = None
        self._is_closed = False
        self._receivers_off: list[str] = []
        self._lasting: list[str] = []

    def settings(self) -> Settings | None:
        """Return the settings, None if what is wrong cannot be left out."""
        for _ in range(MAX_ROUNDS):
            checker = Checker(self._context)
            sections = checker.section(Sections, self._merged.values)
            if sections is not None and not checker.mistakes:
                return self._build(sections)
            if not self._leave_out(checker.mistakes):
                return None
        return None

    def _build(self, sections: Sections) -> Settings:
        if self._is_closed and self._last is not None:
            sections = replace(sections, web=closed_web(self._listen, self._last))
        return replace(
            build_settings(sections, self._merged, self._context),
            problems=tuple(self._problems),
            is_as_given=False,
            access_is_closed=self._is_closed,
            receivers_off=tuple(self._receivers_off),
            lasting_problems=tuple(self._lasting),
        )

    def _leave_out(self, mistakes: Iterable[Mistake]) -> bool:
        """Leave out every place with a mistake. Return False if one has to stay."""
        found: dict[KeyPath, str] = {}
        for mistake in mistakes:
            sentence = describe_mistake(mistake, self._merged.find).text
            if mistake.path[:1] == ("web",):
                if not self._close(sentence):
                    return False
                continue
            places = self._places(mistake)
            if not places:
                return False
            for place, what in places.items():
                found.setdefault(place, f"{what}: {sentence}")
        for place in sorted(found, key=repr, reverse=True):  # of a list, the last table first
            if self._is_table(place, "receiver"):
                self._receivers_off.append(self._name_at(place).strip('"'))
            remove(self._merged.values, place)
        self._problems += found.values()
        self._lasting += (text for place, text in found.items() if place[0] in (*PARTS, "engines"))
        return True

    def _close(self, sentence: str) -> bool:
        """Give access to this machine only, with the login of before."""
        if self._last is None or self._is_closed:
            return False
        web = self._merged.values.get("web")
        self._listen = web.get("listen") if isinstance(web, dict) else None
        self._merged.values["web"] = {}
        self._is_closed = True
        self._problems.append(f"only this machine has access, with the login of before: {sentence}")
        return True

    def _places(self, mistake: Mistake) -> dict[KeyPath, str]:
        """Return the tables and keys to leave out, each with the words for it."""
        path = mistake.path
        if mistake.is_external:
            if path == ("alerts", "proxy"):
                return {path: "the proxy is off", **self._without_own_proxy()}
            for place, kind in ((path[:3], "receiver"), (path[:2], "model server"), (path[:2], "neighbour")):
                if self._is_table(place, kind):
                    return {place: f"{kind} {self._name_at(place)} is off"}
            if path[0] in PARTS:
                return {path[:1]: PARTS[str(path[0])]}
        if not self._leaves_out_keys or path[:2] in ROOTS:
            return {}
        keys = [(*path, *key) for key in mistake.refusal.keys] or [path]
        if mistake.kind == "missing":
            keys = [path[:-1]]
        return {key: "left out" for key in keys if key}

    def _is_table(self, place: KeyPath, kind: str) -> bool:
        wanted = {"receiver": ("alerts", 3), "model server": ("engines", 2), "neighbour": ("neighbours", 2)}[kind]
        return (place[0], len(place)) == wanted and isinstance(place[-1], int)

    def _without_own_proxy(self) -> dict[KeyPath, str]:
        alerts = self._merged.values.get("alerts", {})
        tables = {
            ("alerts", kind, index): one for kind in WHERE_HTTP for index, one in enumerate(alerts.get(kind, ()))
        }
        return {
            place: f"receiver {self._name_at(place)} is off"
            for place, one in tables.items()
            if isinstance(one, dict) and "proxy" not in one
        }

    def _name_at(self, place: KeyPath) -> str:
        table: Any = self._merged.values
        for part in place:
            table = table[part]
        name = table.get("name") if isinstance(table, dict) else None
        return f'"{name}"' if isinstance(name, str) else f"number {place[-1]}"


def remove(values: Any, place: KeyPath) -> None:  # noqa: ANN401  nested tables and lists
    """Remove a table or a key. One that is gone already, as a part of another, is no error."""
    for part in place[:-1]:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):  # noqa: PERF203  of three
            return
    if isinstance(values, dict):
        values.pop(place[-1], None)
    elif isinstance(values, list) and isinstance(place[-1], int) and place[-1] < len(values):
        del values[place[-1]]


def closed_web(listen: object, last: LastGood) -> Web:
    """Return a web server for this machine only, on the same ports, with the login of the last good configuration.

    A certificate of a client cannot be asked for without TLS: then no login is accepted at all.
    """
    token = Token(bytes.fromhex(last.token)) if last.token else None
    users = {name: PasswordHash(text) for name, text in last.users.items()}
    if last.by_certificate and token is None and not users:
        token = Token(secrets.token_bytes(32))
    addresses = tuple(dict.fromkeys(local_addresses(listen)))
    return Web(listen=addresses or Web().listen, auth=Auth(bearer_token=token, users=users))


def local_addresses(listen: object) -> Iterable[TcpAddress | UnixAddress]:
    for text in listen if isinstance(listen, list | tuple) else ():
        try:
            address = parse_address(text)
        except InvalidValueError:
            continue
        if is_local(address):
            yield address
        elif isinstance(address, TcpAddress):
            yield TcpAddress("127.0.0.1", address.port)
