"""Command line of the guardian: `memwatchd-guardian`, and `memwatch guardian`, which runs it.

It reads the settings and replaces itself by the process of the guardian, which does without the modules for that.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

import click
import msgspec
from msgspec.structs import replace

from memwatch.build_info import __version__, describe
from memwatch.core import units
from memwatch.core.guardian_report import VERDICTS, Verdict
from memwatch.core.helper.process import python_child
from memwatch.core.linux.daemon_connection import SOCKET_FILE
from memwatch.core.linux.files import ParseError, read_boot_id
from memwatch.core.model import RAM, Absent
from memwatch.core.printable import printable, printable_lines
from memwatch.core.runtime.own_process import refuse_huge_pages
from memwatch.core.snapshot import UNKNOWN_BOOT, Level
from memwatchd.guardian.acting import read_group
from memwatchd.guardian.journal import Record, read_journal
from memwatchd.guardian.load_guard import FROZEN_NAME, thaw_noted
from memwatchd.guardian.loop import STATUS_NAME, Status, describe_mode
from memwatchd.guardian.machine import AskError, Machine, adjust, ask_daemon
from memwatchd.guardian.own_reading import OwnReading
from memwatchd.guardian.records import Adjustment, Candidate, Config, Decision, State, send
from memwatchd.guardian.rules import choose, describe_pool, find_short_pool, order, weigh_reclaim

EXIT_OK, EXIT_FAILURE, EXIT_CONFIGURATION = 0, 1, 78
# Sections that the guardian reads. Others may have secrets that it must not need.
SECTIONS = ("guardian", "pressure", "sampling")
# The status is written every 5 s.
MAX_STATUS_SECONDS = 15.0
TEST_ASK_SECONDS = 5.0
SHORT_VERDICTS: Mapping[Verdict, str] = {
    "right": "right",
    "needed": "where an end was needed, perhaps another one",
    "needless": "needless",
    "unknown": "not known",
}


def load_config(file: str | None, environ: Mapping[str, str]) -> Config:
    """Return the guardian's settings. Raises SettingsError."""
    from memwatchd.settings.credentials import SecretContext
    from memwatchd.settings.load import DEFAULT_FILE, SettingsError, merge, validate
    from memwatchd.settings.validation import Problem

    problems: list[Problem] = []
    merged = merge({"config": file}, environ, DEFAULT_FILE, problems)
    merged.values = {name: merged.values[name] for name in SECTIONS if name in merged.values}
    sections = validate(merged, SecretContext(environ, None), problems)
    if problems:
        raise SettingsError(problems)
    section = sections.guardian
    resident = sections.pressure.targets[RAM].resident if RAM in sections.pressure.targets else None
    critical = sections.pressure.percents_for(RAM)[2]
    return Config(
        limits=section.limits,
        load=section.load_limits,
        dry_run=section.dry_run,
        hook=section.hook,
        daemon=environ.get("MEMWATCH_URL") or f"unix:{SOCKET_FILE}",
        procfs=str(sections.sampling.procfs),
        sysfs=str(sections.sampling.sysfs),
        state_dir=str(section.state_dir),
        run_dir=environ.get("RUNTIME_DIRECTORY", "").partition(":")[0] or "/run/memwatchd-guardian",
        adjustment=Adjustment(critical / 100, int(resident) if isinstance(resident, int) else 0),
        warnings=tuple(merged.warnings),
    )


def fail(text: str, code: int = EXIT_FAILURE) -> NoReturn:
    click.echo(f"memwatchd-guardian: {printable(text)}", err=True)
    sys.exit(code)


def read_config(file: str | None) -> Config:
    from memwatchd.settings.load import SettingsError

    try:
        config = load_config(file, os.environ)
    except SettingsError as error:
        click.echo(printable_lines(str(error)), err=True)
        sys.exit(EXIT_CONFIGURATION)
    if not config.daemon.startswith(("unix:", "http://127.0.0.1:", "http://[::1]:")):
        fail(
            f"MEMWATCH_URL is {config.daemon}, which is not a daemon of this machine; "
            f"for example unix:{SOCKET_FILE}",
            EXIT_CONFIGURATION,
        )
    return config


@click.group("memwatchd-guardian", invoke_without_command=True)
@click.option("--config", metavar="FILE", help="Configuration file.  [default: /etc/memwatchd/memwatchd.toml]")
@click.version_option(__version__, message=describe("memwatchd-guardian"))
@click.pass_context
def guardian(context: click.Context, config: str | None) -> None:
    """End a process before this machine runs out of memory and stops responding.

    Without a command it runs until SIGTERM. It is a dry run, which ends no process, unless [guardian] has
    dry_run = false.
    """
    if sys.platform != "linux":
        fail("it needs Linux")
    context.obj = config
    if context.invoked_subcommand is None:
        command = [*python_child("memwatchd.guardian_cli"), *(["--config", config] if config else [])]
        run(replace(read_config(config), reader=(*command, "check", "--json")))


def run(config: Config) -> NoReturn:
    """Replace this process by that of the guardian, whose modules are read without huge pages as well."""
    refuse_huge_pages()
    fd = send(config)
    command = python_child("memwatchd.guardian.loop")
    os.execv(command[0], [*command, str(fd)])  # noqa: S606


@guardian.command()
@click.option("--json", "as_json", is_flag=True, hidden=True)
@click.pass_obj
def check(file: str | None, as_json: bool) -> None:
    """Check the settings, as a reload does first."""
    config = read_config(file)
    click.echo(msgspec.json.encode(config) if as_json else f"The settings are right; {describe_mode(config)}.")


@guardian.command()
@click.pass_obj
def status(file: str | None) -> None:
    """Show if the guardian runs, and what it saw last."""
    path = Path(read_config(file).run_dir) / STATUS_NAME
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Status)
    except FileNotFoundError:
        fail("the guardian does not run; start it with: systemctl start memwatchd-guardian")
    except (OSError, msgspec.DecodeError) as error:
        fail(f"{path}: {error}")
    age = time.time() - found.unix
    if age > MAX_STATUS_SECONDS or not Path(f"/proc/{found.pid}").exists():
        fail(f"the guardian does not run; it was last seen {units.duration(max(0.0, age))} ago")
    for line in describe_status(found):
        click.echo(printable(line))


def describe_status(found: Status) -> Iterator[str]:
    """Yield the lines of `status`."""
    yield f"The guardian runs as process {found.pid}; {describe_mode(found)}."
    yield (
        f"System RAM: {units.size(found.available_bytes)} of {units.size(found.size_bytes)} are available; "
        f"{units.size(found.critical_bytes)} or less are critical."
    )
    yield f"Decision: {found.decision}."
    if found.load:
        yield f"Load guard: {found.load}."
    yield f"Daemon: {found.daemon}."
    since = local(found.started_unix)
    yield f"Since {since} it acted {found.acted} times, and would have acted {found.would_have_acted} times."
    score = "not known" if found.oom_score_adj is None else str(found.oom_score_adj)
    yield f"Memory {'locked' if found.memory_locked else 'not locked'}, oom_score_adj {score}."


@guardian.command()
@click.pass_obj
def thaw(file: str | None) -> None:
    """Thaw what a guardian froze that has ended. The unit runs it after each end."""
    from memwatchd.settings.load import SettingsError

    try:
        folder = load_config(file, os.environ).state_dir
    except SettingsError:
        folder = Config().state_dir
    if result := thaw_noted(Path(folder) / FROZEN_NAME):
        click.echo(printable(result))


@guardian.command()
@click.pass_obj
def history(file: str | None) -> None:
    """Show what the guardian did or would have done."""
    folder = Path(read_config(file).state_dir)
    try:
        found = list(read_journal(folder))
    except OSError as error:
        fail(f"{folder}: {error.strerror}; run it as root")
    for line in (line for record in found for line in describe_record(record)):
        click.echo(printable(line))
    if verdicts := describe_verdicts(found):
        click.echo(verdicts)
    if not found:
        click.echo(f"No decision is recorded in {folder}.")


def describe_record(record: Record) -> Iterator[str]:
    """Yield the lines of one decision."""
    dry = " (dry run)" if record.dry_run else ""
    yield f"{local(record.unix)}{dry}: {record.reason}"
    for step in record.steps:
        yield f"  {step.step}: {step.result}; {units.size(max(0, step.available_bytes))} available"
    for one in record.refused:
        yield f"  not {one.name} ({one.pid}): {one.why}"
    if record.more_refused:
        yield f"  not {record.more_refused} more"
    if record.outcome:
        yield f"  {VERDICTS[record.outcome.verdict]}: {record.outcome.evidence}"
    elif record.dry_run and record.decision == "act":
        yield "  not judged yet"


def describe_verdicts(records: Iterable[Record]) -> str:
    """Return the number of dry runs by verdict: "Of 7 dry runs 5 would have been right, ..."; empty without one."""
    found = Counter(one.outcome.verdict for one in records if one.outcome)
    counts = ", ".join(f"{found[one]} {word}" for one, word in SHORT_VERDICTS.items() if found[one])
    return f"Dry runs that were judged: {counts}." if counts else ""


def local(unix: float) -> str:
    return datetime.fromtimestamp(unix).astimezone().isoformat(" ", "seconds")


@guardian.command()
@click.pass_obj
def test(file: str | None) -> None:
    """Show what the guardian would do on this machine now, and if memory were critical."""
    config = read_config(file)
    try:
        reading, machine = OwnReading(config.proc), Machine(config.proc)
    except (OSError, ParseError) as error:
        fail(f"this machine is not read: {error}")
    answer, why = None, ""
    try:
        answer = ask_daemon(config.daemon, read_boot_id(config.proc) or UNKNOWN_BOOT, TEST_ASK_SECONDS)
    except AskError as error:
        why = f"{config.daemon} gives no figures: {error}"
    try:
        at = time.monotonic()
        pool = reading.read(at, adjust(config.adjustment, answer.snapshot) if answer else config.adjustment)
    except (OSError, ParseError) as error:
        fail(f"this machine is not read: {error}")
    found = machine.candidates(answer, at) if answer else ()
    own = frozenset({os.getpid(), answer.pid} if answer and answer.pid else {os.getpid()})
    state = State(at, at, (pool,), found, own)
    click.echo(f"Mode: {describe_mode(config)}.")
    click.echo(printable(f"Daemon: {why or 'in time'}."))
    _, reason = find_short_pool((pool,))
    if reason:
        click.echo(printable(f"Now: nothing is done: {reason}."))
    else:
        click.echo(f"Now: {describe_pool(pool)}; only the guardian that runs knows which process has grown.")
    scarce = replace(
        pool,
        level=Level.CRITICAL,
        available_bytes=pool.critical_bytes // 2,
        evidence=("util", "floor"),
        seconds_to_full=None,
    )
    if not found:
        click.echo("No process is known that could end.")
        return
    # While memory is short, the daemon reads processes once a second, and once in ten seconds otherwise.
    fresh = tuple(replace(one, device_age_seconds=1.0) if one.device_age_seconds <= 15 else one for one in found)
    cause = min(fresh, key=order)
    click.echo(printable(f"If {cause.title} had grown until half of the critical threshold were left:"))
    decision = choose(replace(state, candidates=fresh), scarce, config.limits, (cause,))
    decision = weigh_reclaim(decision, scarce, partial(read_group, Path(config.sysfs) / "fs/cgroup"))
    for line in describe_choice(decision, fresh):
        click.echo(printable(f"  {line}"))


def describe_choice(decision: Decision, found: tuple[Candidate, ...]) -> Iterator[str]:
    """Yield which process would end by which steps, and why others would not."""
    yield f"{decision.reason}."
    if decision.steps:
        taken = (f"{step.name} ({step.seconds:g} s)" for step in decision.steps if not step.why_not)
        yield f"Steps: {', '.join(taken)}."
    yield from (f"Not {step.name}: {step.why_not}." for step in decision.steps if step.why_not)
    for one in decision.refused:
        yield f"Not {one.candidate.title}, {units.size(one.candidate.footprint_bytes)}: {one.why}."
    seen = {one.candidate.key for one in decision.refused} | ({decision.victim.key} if decision.victim else set())
    if rest := [one for one in found if one.key not in seen]:
        unknown = sum(isinstance(one.unit, Absent) for one in rest)
        yield f"{len(rest)} more were not reached{f', {unknown} of them without a known unit' if unknown else ''}."


def main() -> None:
    """Run the program."""
    guardian.main(prog_name="memwatchd-guardian")


if __name__ == "__main__":
    main()
