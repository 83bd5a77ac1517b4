"""The configuration of a running daemon: keeps the last good one, reports what is wrong, and `memwatchd --reload`.

`memwatchd --reload` is the ExecReload= of the unit: it reloads the running daemon, and fails if that refuses.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from memwatch.core.options import ConfigState
from memwatch.core.runtime.regular_file import read_regular
from memwatchd.settings.fallback import LastGood, keep_last_good
from memwatchd.settings.load import SYSTEMD_RUNTIME
from memwatchd.settings.schema import Settings

log = logging.getLogger(__name__)

RESULT = "reload.json"
ONLY_HERE = "only this machine has access until memwatchd is restarted: [web] was refused at its start"
# The daemon answers within a tick; reading secrets from a slow file system takes longer. systemd waits for 60 s.
WAIT_SECONDS = 45.0
PAUSE_SECONDS = 0.02
MAX_RESULT_BYTES = 1 << 20


class ReloadResult(Struct, frozen=True):
    """Result of the latest reload, for `memwatchd --reload`. `number` counts them since the start of `pid`."""

    pid: int
    number: int
    problems: tuple[str, ...] = ()


class ConfigKeeper:
    """State of the configuration. `record` adds an event of a kind; `folder` is None without a state folder."""

    def __init__(self, record: Callable[[str, str], None], folder: Path | None) -> None:
        self.state: ConfigState = ConfigState()
        self._record = record
        self._folder = folder
        self._result = result_file(os.environ)
        self._number = 0
        self._loaded_unix: float | None = None
        # Problems of the settings in force.
        self._problems: tuple[str, ...] = ()
        # Those that the next start may end, but no reload.
        self._lasting: tuple[str, ...] = ()

    def started(self, settings: Settings) -> None:
        """Take note of the settings of the start."""
        self._problems = settings.problems
        self._lasting = tuple(f"{one}; restart memwatchd when that is mended" for one in settings.lasting_problems)
        if settings.access_is_closed:
            self._lasting = (ONLY_HERE, *self._lasting)
        event = f"configuration not in force: {settings.problems[0]}" if settings.problems else ""
        if settings.is_as_given:
            self._take(settings, event)
        else:
            self._use(ConfigState(settings.problems, is_loaded=False), event)
        self._write_result(())

    def reloaded(self, settings: Settings) -> None:
        """Take note of new settings that are in force."""
        self._problems = self._lasting
        self._take(settings)
        self._number += 1
        self._write_result(())

    def refused(self, problems: Sequence[str]) -> None:
        """Take note of a reload that was refused: the settings of before stay in force."""
        for problem in problems:
            log.error("reload failed, keeping the old settings: %s", problem)
        known = (*self._problems, *(f"a reload was refused: {problem}" for problem in problems))
        event = f"reload failed, keeping the old settings: {problems[0]}"
        self._use(ConfigState(known, False, self._loaded_unix), event)
        self._number += 1
        self._write_result(problems)

    def _take(self, settings: Settings, event: str = "") -> None:
        """Note that the configuration is in force, and keep it."""
        self._loaded_unix = time.time()
        problem = self._keep(settings)
        if problem:
            log.warning("%s", problem)
            self._problems = (*self._problems, problem)
            event = event or problem
        self._use(ConfigState(self._problems, True, self._loaded_unix), event)

    def _use(self, state: ConfigState, event: str) -> None:
        self.state = state
        if event:
            self._record("config", event)

    def _keep(self, settings: Settings) -> str:
        """Keep the configuration for a later start. Return why it cannot be kept, or ""."""
        if self._folder is None:
            return ""
        login = settings.web.login
        last = LastGood(
            time.time(),
            settings.given,
            login.token.digest.hex() if login.token else None,
            {name: one.text for name, one in login.users.items()},
            login.by_certificate,
        )
        try:
            keep_last_good(self._folder, last)
        except OSError as error:
            return f"this configuration cannot be kept for a start with a refused one: {error.strerror or error}"
        return ""

    def _write_result(self, problems: Sequence[str]) -> None:
        """Tell `memwatchd --reload`. Without a folder of the unit there is none to tell."""
        if self._result is None:
            return
        fresh = self._result.with_name(f".{RESULT}.new")
        try:
            fresh.write_bytes(msgspec.json.encode(ReloadResult(os.getpid(), self._number, tuple(problems))))
            os.replace(fresh, self._result)
        except OSError as error:
            log.warning("systemctl cannot get the result of a reload: %s", error.strerror or error)


def result_file(environ: Mapping[str, str]) -> Path | None:
    folder = environ.get(SYSTEMD_RUNTIME, "").partition(":")[0]
    return Path(folder) / RESULT if folder and os.access(folder, os.W_OK) else None


class ReloadError(Exception):
    """The reload failed. `problems` has the sentences of the daemon, or the reason why it did not answer."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def reload(environ: Mapping[str, str]) -> None:
    """Reload the daemon with the PID in $MAINPID, and wait for its result. Raises ReloadError."""
    main = environ.get("MAINPID", "")
    file = result_file(environ)
    if not re.fullmatch(r"[1-9][0-9]{0,9}", main):
        raise ReloadError("--reload is for the unit: run systemctl reload memwatchd, or kill -HUP PID elsewhere")
    pid = int(main)
    before = None if file is None else read_result(file)
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        raise ReloadError(f"the daemon with PID {pid} cannot be reloaded: {error.strerror}") from None
    if file is None or before is None or before.pid != pid:
        return  # a daemon of before, which writes no results
    end = time.monotonic() + WAIT_SECONDS
    while (now := read_result(file)) is None or now == before or now.number == before.number:
        if time.monotonic() > end:
            raise ReloadError(f"the daemon with PID {pid} did not answer within {WAIT_SECONDS:.0f} s; see its log")
        time.sleep(PAUSE_SECONDS)
    if now.problems:
        raise ReloadError(*now.problems)


def read_result(file: Path) -> ReloadResult | None:
    try:
        return msgspec.json.decode(read_regular(file, MAX_RESULT_BYTES), type=ReloadResult)
    except (OSError, ValueError):
        return None
