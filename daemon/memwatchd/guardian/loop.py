"""The loop of the guardian: read, decide, act, report. Its `main` runs it with settings in a descriptor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from memwatch.core import units
from memwatch.core.guardian_report import REPORT_SECONDS, VERDICTS, Verdict
from memwatch.core.linux.files import ParseError, read_boot_id
from memwatch.core.linux.process_files import parse_boot_time
from memwatch.core.printable import describe_error, printable
from memwatch.core.reading.self_usage import SelfUsageReader
from memwatch.core.runtime.own_process import fit_into_limits
from memwatch.core.snapshot import UNKNOWN_BOOT, Level
from memwatchd.guardian.acting import (
    SETTLE_SECONDS,
    Means,
    StepResult,
    Victim,
    VictimGoneError,
    act,
    names_of,
    read_group,
    would_take,
)
from memwatchd.guardian.growth import POOL_SECONDS, Growth
from memwatchd.guardian.journal import (
    MAX_REFUSED,
    Journal,
    Record,
    describe_refused,
    describe_victim,
    now,
    read_journal,
)
from memwatchd.guardian.load_guard import FreezeError, Freezer, decide_load, describe_freeze, is_enough
from memwatchd.guardian.machine import AskError, DaemonAnswer, Machine, adjust, ask_daemon, by_pid
from memwatchd.guardian.outcome import Outcome, Seen, after, judge
from memwatchd.guardian.own_reading import OwnReading, next_pause
from memwatchd.guardian.records import AT_START, Candidate, Config, Decision, Past, PoolState, State, receive
from memwatchd.guardian.rules import decide, find_short_pool, weigh_reclaim
from memwatchd.guardian.telling import Teller
from memwatchd.sd_notify import Notifier

# While memory is short or falls fast, and while it is critical, the daemon is asked this often.
ASK_EVERY_SECONDS, ASK_SOON_SECONDS = 1.0, 0.25
# After a failure the daemon is not asked for this time.
ASK_AGAIN_SECONDS = 1.0
# A daemon whose figures are older than this is late: its figures of System RAM are not used.
MAX_DAEMON_SECONDS = 1.0
# One shortage is over after this time without evidence. In each there is one record of the same kind.
QUIET_SECONDS = 60.0
STATUS_SECONDS = 5.0
# While a loader is frozen, or may have to be.
LOAD_SECONDS = 0.2
# The program that reads the settings has this long.
READ_SECONDS = 60.0
OOM_SCORE_ADJ = -900
STATUS_NAME = "status.json"
ERROR, WARNING, NOTICE, INFO = 3, 4, 5, 6


class Status(Struct, frozen=True):
    """State of the guardian, for `memwatch guardian status`. `daemon`: a clause about it."""

    pid: int
    started_unix: float
    unix: float
    dry_run: bool
    memory_locked: bool
    oom_score_adj: int | None
    available_bytes: int
    critical_bytes: int
    size_bytes: int
    decision: str
    daemon: str
    acted: int
    would_have_acted: int
    load: str = ""


class Watch(NamedTuple):
    """A dry run whose outcome is not known yet. `at`: monotonic seconds. `kills`: by the kernel before it."""

    record: Record
    process: Victim
    at: float
    kills: int | None
    seen: Seen


class Log:
    """Lines for the journal. A reader that does not read never stops the guardian: what does not fit is dropped."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._in_journal = "JOURNAL_STREAM" in os.environ
        if self._in_journal:
            os.set_blocking(fd, False)

    def write(self, level: int, text: str) -> None:
        line = f"{f'<{level}>' if self._in_journal else ''}{printable(text)}\n"
        try:
            os.write(self._fd, line.encode("utf-8", "replace"))
        except OSError:
            return


class Guardian:
    """The state of the loop. Opening raises OSError and ParseError."""

    def __init__(self, config: Config, log: Log, notifier: Notifier) -> None:
        self._config = config
        self._log = log
        self._notifier = notifier
        self._reading = OwnReading(config.proc)
        self._machine = Machine(config.proc)
        self._growth = Growth()
        self._journal = Journal(Path(config.state_dir))
        self._teller = Teller(config.daemon, Path(config.state_dir), partial(log.write, WARNING))
        self._boot_id = read_boot_id(config.proc) or UNKNOWN_BOOT
        self._adjustment = config.adjustment
        self._answer: DaemonAnswer | None = None
        self._asked_at = self._failed_at = -inf
        self._daemon_words = "not asked yet"
        self._past = Past()
        self._short_at = -inf
        self._told: set[str] = set()
        self._acted = self._would_have_acted = 0
        self._started = now()
        self._watch: Watch | None = None
        self._cgroups = Path(config.sysfs) / "fs/cgroup"
        self._freezer = Freezer(self._cgroups, config.proc, Path(config.state_dir))
        self._frozen_with: tuple[Candidate, str, PoolState] | None = None
        self._low_at, self._spent = -inf, 0.0
        self._load_words = "no fast load"
        self._load_told: set[str] = set()
        self._own_pids = frozenset({os.getpid(), os.getppid()})
        self._status_at = -inf
        self._reading_settings: threading.Thread | None = None
        self._new_settings: Config | str = ""
        self.is_stopping: bool = False
        self.is_reloading: bool = False
        self.memory_locked: bool = False

    @property
    def mode(self) -> str:
        """State for `systemctl status`."""
        return "dry run" if self._config.dry_run else "watching"

    def close(self) -> None:
        self.thaw()
        self._reading.close()
        self._machine.close()
        self._journal.close()
        self._teller.close()

    def turn(self) -> float:
        """Read once, decide, act. Return the seconds until the next turn. Raises OSError and ParseError."""
        if self.is_reloading:
            self._reload()
        read_at = time.monotonic()
        pool = self._reading.read(read_at, self._adjustment)
        self._growth.add_pool(read_at, pool)
        short, _ = find_short_pool((pool,))
        if pool.level >= Level.HIGH or self._growth.falls(pool.size_bytes):
            self._ask(read_at, ASK_SOON_SECONDS if short else ASK_EVERY_SECONDS)
        # The growth of processes is known only if they were read before it is needed.
        is_low = self._config.load.enabled and self._is_low(pool)
        candidates, fall, most = self._growth.measure(self._candidates()) if short or is_low else ((), None, 0.0)
        own = self._own_pids | ({self._answer.pid} if self._answer and self._answer.pid else set())
        state = State(time.monotonic(), read_at, (pool,), candidates, own, fall, most)
        decision, self._past = decide(state, self._config.limits, self._past)
        if short:
            self._short_at = read_at
        elif read_at - self._short_at > QUIET_SECONDS:
            self._told.clear()
        self._guard_load(pool, state, is_short=short is not None)
        if short and decision.kind != "wait":
            self._carry_out(decision, pool, state.now)
        self._follow(pool, state.now)
        self._write_status(pool, decision)
        return min(next_pause(pool), LOAD_SECONDS) if self._freezer.frozen or is_low else next_pause(pool)

    def _is_low(self, pool: PoolState) -> bool:
        return pool.ready_bytes is not None and pool.ready_bytes < self._config.load.floor_bytes

    def _guard_load(self, pool: PoolState, state: State, *, is_short: bool) -> None:
        """Thaw a loader in time, and freeze one that loads too fast. A frozen process runs no handler."""
        load, now = self._config.load, state.now
        if self._freezer.frozen and (
            is_short or now >= self._freezer.frozen.until or is_enough(pool.ready_bytes, load)
        ):
            self.thaw()
        if not load.enabled or is_short or self._freezer.frozen:
            return
        if self._is_low(pool):
            self._low_at = now
        elif now - self._low_at > QUIET_SECONDS:
            self._spent = 0.0
            self._load_words = "no fast load"
            self._load_told.clear()
            return
        decision = decide_load(state, load, self._config.limits, self._growth.falls(pool.size_bytes), self._spent)
        self._load_words = decision.reason
        if decision.loader is not None:
            self._freeze(decision.loader, decision.reason, pool, state)

    def _freeze(self, loader: Candidate, reason: str, pool: PoolState, state: State) -> None:
        load = self._config.load
        seconds = min(load.freeze_seconds, load.total_seconds - self._spent)
        if self._config.dry_run:
            if "dry run" not in self._load_told:
                self._load_told.add("dry run")
                self._log.write(WARNING, f"dry run: {reason}; {loader.title} would be frozen for {seconds:.1f} s")
                self._record_freeze(loader, reason, pool, "would be frozen", 0.0, None)
            return
        try:
            self._freezer.freeze(loader, state.now, seconds, state.own_pids)
        except FreezeError as error:
            if str(error) not in self._load_told:
                self._load_told.add(str(error))
                self._log.write(WARNING, f"{loader.title} is not frozen: {error}")
            self._load_words = f"{loader.title} is not frozen: {error}"
            return
        self._frozen_with = loader, reason, pool
        self._log.write(WARNING, f"{reason}; {loader.title} is frozen for {seconds:.1f} s at most")

    def thaw(self) -> None:
        """Thaw what is frozen, and record what that helped."""
        frozen, found = self._freezer.frozen, self._frozen_with
        if frozen is None or found is None:
            return
        result = self._freezer.thaw()
        if result != "thawed":
            self._log.write(ERROR, f"{frozen.title}: {result}")
            return
        at = time.monotonic()
        self._spent += at - frozen.since
        loader, reason, before = found
        ready: int | None = None
        with suppress(OSError, ParseError):
            ready = self._reading.read(at, self._adjustment).ready_bytes
        words = describe_freeze(frozen, at, before.ready_bytes or 0, ready)
        self._log.write(NOTICE, f"{loader.title} is thawed: {words}")
        helped = ready is not None and ready >= self._config.load.floor_bytes
        self._record_freeze(loader, f"{reason}; {words}", before, words, at - frozen.since, helped)

    def _record_freeze(
        self, loader: Candidate, reason: str, pool: PoolState, words: str, seconds: float, helped: bool | None
    ) -> None:
        step = StepResult("freeze", words, pool.available_bytes, round(seconds, 3))
        decision = Decision("freeze", reason, loader)
        self._record(decision, pool, (step,), helped)

    def _reload(self) -> None:
        """Have a program read the settings again, and use them once it has ended. Wrong ones change nothing."""
        if self._reading_settings is None:
            self._reading_settings = threading.Thread(target=self._read_settings, daemon=True)
            self._reading_settings.start()
        if self._reading_settings.is_alive():
            return
        self._reading_settings, self.is_reloading = None, False
        if isinstance(self._new_settings, str):
            self._log.write(ERROR, f"the settings stay as they are: {self._new_settings}")
            return
        kept = {name: getattr(self._config, name) for name in AT_START}
        if later := [name for name, value in kept.items() if getattr(self._new_settings, name) != value]:
            self._log.write(WARNING, f"{', '.join(later)} of the new settings: used from the next start on")
        self._config = replace(self._new_settings, **kept)
        given, answer = self._config.adjustment, self._answer
        self._adjustment = adjust(given, answer.snapshot) if answer else given
        self._told.clear()
        for warning in self._config.warnings:
            self._log.write(WARNING, warning)
        self._log.write(INFO, f"the settings were read again; {describe_mode(self._config)}")

    def _read_settings(self) -> None:
        try:
            self._new_settings = read_settings(self._config.reader)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._new_settings = describe_error(error)

    def _ask(self, at: float, every: float) -> None:
        if at - self._asked_at < every or at - self._failed_at < ASK_AGAIN_SECONDS:
            return
        self._asked_at = at
        try:
            answer = ask_daemon(self._config.daemon, self._boot_id)
        except AskError as error:
            self._failed_at = time.monotonic()
            self._daemon_words = f"no figures: {error}"
            self._warn_once(f"the daemon at {self._config.daemon} gives no figures: {error}")
            return
        if answer.age > MAX_DAEMON_SECONDS:
            self._daemon_words = f"late by {units.duration(answer.age) if answer.age < inf else 'an unknown time'}"
            self._warn_once(f"the daemon is late: {self._daemon_words}")
        else:
            self._daemon_words = "in time"
            self._adjustment = adjust(self._adjustment, answer.snapshot)
        self._answer = answer
        if answer.device_age <= POOL_SECONDS:
            # No figure is newer than the snapshot.
            oldest, newest = answer.at - answer.device_age, answer.at - answer.age
            self._growth.add(oldest, newest, self._machine.candidates(answer, answer.at))

    def _candidates(self) -> tuple[Candidate, ...]:
        return self._machine.candidates(self._answer, time.monotonic()) if self._answer else ()

    def _carry_out(self, decision: Decision, pool: PoolState, decided_at: float) -> None:
        if decision.kind == "nothing" or decision.victim is None:
            if "nothing" not in self._told:
                self._told.add("nothing")
                self._log.write(WARNING, f"nothing is done: {decision.reason}")
                self._record(decision, pool, (), None)
            return
        if self._config.dry_run and "dry run" in self._told:
            return
        victim = decision.victim
        decision = weigh_reclaim(decision, pool, partial(read_group, self._cgroups))
        if not self._config.dry_run:
            self._act(decision, victim, pool, decided_at)
            return
        self._told.add("dry run")
        self._would_have_acted += 1
        steps = would_take(decision.steps, pool.available_bytes)
        self._log.write(
            WARNING, f"dry run: {decision.reason}; steps that would be taken: {names_of(decision.steps)}"
        )
        record = self._record(decision, pool, tuple(steps), None)
        self._begin_to_follow(record, victim, decided_at)

    def _begin_to_follow(self, record: Record, victim: Candidate, decided_at: float) -> None:
        """Watch what happens after a dry run."""
        ticks = self._machine.start_ticks.get(victim.key)
        if self._watch is not None:
            self._end_watch(self._watch)
        with suppress(VictimGoneError, OSError):
            if ticks is not None:
                process = Victim(self._config.proc, victim.pid, ticks)
                self._watch = Watch(record, process, decided_at, self._reading.count_kills(), Seen())

    def _follow(self, pool: PoolState, now: float) -> None:
        """Add a reading to what was seen since a dry run, and judge it once the shortage is over."""
        if (watch := self._watch) is None:
            return
        kills = self._reading.count_kills()
        more = None if kills is None or watch.kills is None else kills - watch.kills
        watch.seen.add(now - watch.at, pool.level >= Level.CRITICAL, watch.process.has_ended(0), more)
        if watch.seen.is_over:
            self._end_watch(watch)

    def _end_watch(self, watch: Watch) -> None:
        self._watch = None
        watch.process.close()
        victim = watch.record.victim
        title = f"{victim.name} ({victim.pid})" if victim else "the process"
        self._judge(watch.record, *judge(watch.seen, title))

    def _judge(self, record: Record, verdict: Verdict, evidence: str) -> None:
        outcome = Outcome(now(), record.unix, verdict, evidence)
        self._log.write(NOTICE, f"dry run: {VERDICTS[verdict]}: {evidence}")
        self._append(outcome)
        self._teller.tell(replace(record, outcome=outcome))

    def thaw_last_run(self) -> None:
        """Thaw what the last guardian left frozen."""
        if result := self._freezer.thaw_last_run():
            self._log.write(WARNING, result)

    def judge_last_run(self) -> None:
        """Judge the dry runs that no guardian could follow to the end, as it or the machine stopped."""
        try:
            began = parse_boot_time((self._config.proc / "stat").read_bytes())
            open_ones = [one for one in read_journal(Path(self._config.state_dir)) if is_open(one)]
        except (OSError, ParseError):
            return
        for one in open_ones:
            if one.unix < began:
                why = f"the machine started again {after(began - one.unix)}"
            else:
                why = "the guardian stopped before the shortage was over"
            self._judge(one, "unknown", why)

    def _append(self, line: Record | Outcome) -> None:
        try:
            self._journal.append(line)
        except OSError as error:
            self._log.write(
                ERROR, f"the journal in {self._config.state_dir} is not written: {describe_error(error)}"
            )

    def _act(self, decision: Decision, chosen: Candidate, pool: PoolState, decided_at: float) -> None:
        """Take the steps on the victim, if it is still the same process."""
        ticks = self._machine.start_ticks.get(chosen.key)
        try:
            if ticks is None:
                raise VictimGoneError("it has ended")
            victim = Victim(self._config.proc, chosen.pid, ticks)
        except (VictimGoneError, OSError) as error:
            self._log.write(NOTICE, f"nothing is done: {chosen.title}: {describe_error(error)}")
            self._past = self._past.after_action(time.monotonic())
            return
        engine = by_pid(self._answer.snapshot.engines).get(chosen.pid) if self._answer else None
        means = Means(self._config.hook, self._cgroups, engine)
        self._log.write(ERROR, f"{decision.reason}; steps: {names_of(decision.steps)}")
        try:
            results = act(victim, chosen, decision.steps, means, self._look, decided_at)
            has_ended = victim.has_ended(0)
        finally:
            victim.close()
        after = self._reading.read(time.monotonic(), self._adjustment)
        helped = after.level < Level.CRITICAL
        was_killed = any(one.step == "sigkill" and one.result.startswith("sent") for one in results)
        self._past = self._past.after_action(
            time.monotonic() + SETTLE_SECONDS, chosen.key if was_killed and not has_ended else None
        )
        self._acted += 1
        for one in results:
            self._log.write(
                NOTICE,
                f"{one.step} on {chosen.title}: {one.result}; {units.size(one.available_bytes)} are available",
            )
        self._record(decision, pool, tuple(results), helped)

    def _look(self) -> tuple[int, bool]:
        self._notifier.alive("acting")
        pool = self._reading.read(time.monotonic(), self._adjustment)
        return pool.available_bytes, pool.level < Level.CRITICAL

    def _record(
        self, decision: Decision, pool: PoolState, steps: tuple[StepResult, ...], helped: bool | None
    ) -> Record:
        left = steps[-1].available_bytes if steps else pool.available_bytes
        record = Record(
            now(),
            "nothing" if decision.kind == "wait" else decision.kind,
            decision.reason,
            self._config.dry_run,
            pool.available_bytes,
            left,
            pool.seconds_to_full,
            describe_victim(decision.victim) if decision.victim else None,
            steps,
            describe_refused(decision),
            max(0, len(decision.refused) - MAX_REFUSED),
            helped,
        )
        self._append(record)
        self._teller.tell(record)
        return record

    def _warn_once(self, text: str) -> None:
        """Log a warning once in a shortage."""
        if text not in self._told:
            self._told.add(text)
            self._log.write(WARNING, text)

    def _write_status(self, pool: PoolState, decision: Decision) -> None:
        at = time.monotonic()
        if at - self._status_at < STATUS_SECONDS:
            return
        self._status_at = at
        status = Status(
            os.getpid(),
            self._started,
            now(),
            self._config.dry_run,
            self.memory_locked,
            read_own_score(),
            pool.available_bytes,
            pool.critical_bytes,
            pool.size_bytes,
            decision.reason,
            self._daemon_words,
            self._acted,
            self._would_have_acted,
            self._load_words if self._config.load.enabled else "",
        )
        path = Path(self._config.run_dir) / STATUS_NAME
        try:
            path.with_suffix(".new").write_bytes(msgspec.json.encode(status))
            path.with_suffix(".new").replace(path)
        except OSError as error:
            self._warn_once(f"{path} is not written: {describe_error(error)}")


def is_open(record: Record) -> bool:
    """Return True for a dry run without an outcome, of at most an hour ago."""
    return (
        record.dry_run
        and record.decision == "act"
        and record.outcome is None
        and now() - record.unix <= REPORT_SECONDS
    )


def describe_mode(seen: Config | Status) -> str:
    return "dry run: it ends no process" if seen.dry_run else "it may end processes"


def read_settings(reader: Sequence[str]) -> Config:
    """Run the command that prints the settings. Raises ValueError with its words, OSError and SubprocessError."""
    done = subprocess.run(  # noqa: S603  this program itself
        reader, stdin=subprocess.DEVNULL, capture_output=True, cwd="/", timeout=READ_SECONDS, check=False
    )
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip()
        raise ValueError(" ".join(words.split()) or f"the program that reads them ended with {done.returncode}")
    return replace(msgspec.json.decode(done.stdout, type=Config), reader=tuple(reader))


def read_own_score() -> int | None:
    try:
        return int(Path("/proc/self/oom_score_adj").read_bytes())
    except (OSError, ValueError):
        return None


def protect(log: Log) -> bool:
    """Lock the memory of this process, and be among the last to be killed. Return True if it is locked."""
    usage = SelfUsageReader()
    why = usage.lock_memory()
    usage.close()
    if why:
        log.write(WARNING, why)
    if read_own_score() != OOM_SCORE_ADJ:
        try:
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_ADJ), "ascii")
        except OSError as error:
            log.write(
                WARNING,
                f"oom_score_adj stays {read_own_score()}, not {OOM_SCORE_ADJ}: {describe_error(error)}; the kernel "
                "may end the guardian first",
            )
    SelfUsageReader.trim_memory()
    return why is None


def run(config: Config, log: Log | None = None) -> int:
    """Run until SIGTERM or SIGINT. Return the exit code."""
    log = log or Log()
    notifier = Notifier(partial(log.write, WARNING))
    try:
        guardian = Guardian(config, log, notifier)
    except (OSError, ParseError) as error:
        name = getattr(error, "filename", None)
        where = f"{name}: " if name else ""
        log.write(ERROR, f"the guardian cannot start: {where}{describe_error(error)}")
        return 1

    def stop(_number: int, _frame: FrameType | None) -> None:
        guardian.is_stopping = True

    def reload(_number: int, _frame: FrameType | None) -> None:
        guardian.is_reloading = True

    signal.signal(signal.SIGHUP, reload)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    for warning in config.warnings:
        log.write(WARNING, warning)
    guardian.thaw_last_run()
    guardian.judge_last_run()
    guardian.memory_locked = protect(log)
    notifier.ready(1.0)
    log.write(INFO, f"the guardian watches System RAM; {describe_mode(config)}")
    failed = ""
    try:
        while not guardian.is_stopping:
            try:
                pause = guardian.turn()
                failed = ""
            except (OSError, ParseError, MemoryError) as error:
                pause = 1.0
                if str(error) != failed:
                    failed = str(error)
                    log.write(ERROR, f"System RAM is not read: {describe_error(error)}")
            notifier.alive(guardian.mode)
            if not guardian.is_stopping:
                time.sleep(pause)
    finally:
        guardian.close()
    return 0


def main() -> int:
    """Run with the settings in the descriptor that the command line names."""
    fit_into_limits()
    return run(receive(int(sys.argv[1])))
