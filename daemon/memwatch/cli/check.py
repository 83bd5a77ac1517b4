"""`memwatch check`: one line and an exit code by level, for Nagios, cron and Slurm."""

from __future__ import annotations

import json

import click

from memwatch.cli.address import Address
from memwatch.cli.context import build_context, check_shape, common
from memwatch.cli.errors import EXIT_UNKNOWN, CommandError
from memwatch.cli.terminal.moment import LEVELS, labels_of
from memwatch.core.model import Absent
from memwatch.core.printable import printable
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.render import words as wording

STATUS_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
CHOICES = click.Choice(LEVELS[1:])
MAX_NAMED = 3
# OK, a warning, critical and unknown as node-problem-detector counts: 1 is a problem, every other code unknown.
NODE_PROBLEM_CODES = (0, 0, 1, 2)
# `max_output_length` of node-problem-detector's own examples.
MAX_MESSAGE_LENGTH = 80


@click.command(short_help="Exit code by level, for Nagios and scripts.")
@click.option("--fail-on", type=CHOICES, default="critical", help="Level that is critical.  [default: critical]")
@click.option("--warn-on", type=CHOICES, help="Level that is a warning.  [default: high, or a lower --fail-on]")
@click.option(
    "--target", metavar="ID", multiple=True, help="Only this pool, limit or MIG instance. May be repeated."
)
@click.option(
    "--node-problem",
    is_flag=True,
    help="Exit as a plugin of Kubernetes' node-problem-detector: 0 (OK), 1 (--fail-on is reached) or 2 (unknown).",
)
@common
def check(
    fail_on: str,
    warn_on: str | None,
    target: tuple[str, ...],
    node_problem: bool,
    url: Address | None,
    as_json: bool,
) -> int:
    """Print the worst level with performance data in one line, as Nagios plugins do.

    Exits with 0 (OK), 1 (warning), 2 (critical) or 3 (unknown: no daemon, no data, or stale data).
    """
    if warn_on and LEVELS.index(warn_on) > LEVELS.index(fail_on):
        raise click.UsageError(f"--warn-on is {warn_on}, above --fail-on ({fail_on}): there would be no warning")
    warn_on = warn_on or min("high", fail_on, key=LEVELS.index)
    try:
        context = build_context(url, as_json)
        answer = context.snapshot()
        with check_shape(context.address):
            code, line = judge(answer.snapshot, answer.age_seconds or 0.0, fail_on, warn_on, target)
            figures = perfdata(answer.snapshot, target, fail_on, warn_on)
    except CommandError as error:
        code, line, figures = EXIT_UNKNOWN, str(error), ""
        as_json = as_json or bool(
            (click.get_current_context().parent or click.get_current_context()).params.get("as_json")
        )
    else:
        as_json = context.as_json
    if node_problem:
        print(printable(shorten(line)))
        return NODE_PROBLEM_CODES[code]
    if as_json:
        print(json.dumps({"status": STATUS_WORDS[code].lower(), "exit_code": code, "text": line}))
    else:
        print(printable(f"MEMWATCH {STATUS_WORDS[code]} - {line}{f' | {figures}' if figures else ''}"))
    return code


def shorten(line: str) -> str:
    """Return a line that node-problem-detector does not cut."""
    return line if len(line) <= MAX_MESSAGE_LENGTH else line[: MAX_MESSAGE_LENGTH - 1] + "…"


def judge(snapshot: Snapshot, age: float, fail_on: str, warn_on: str, targets: tuple[str, ...]) -> tuple[int, str]:
    """Return the exit code and a sentence."""
    known = [one for one in snapshot.pressure if not targets or one.target in targets]
    missing = [name for name in targets if name not in {one.target for one in known}]
    if missing:
        ids = ", ".join(one.target for one in snapshot.pressure)
        return EXIT_UNKNOWN, f"no level for {', '.join(missing)}; targets are {ids or 'none'}"
    if not known:
        return EXIT_UNKNOWN, "no memory data"
    # A Date header has no fractions, so an age is known to the second.
    if age > 3 * snapshot.interval_seconds + 1:
        return EXIT_UNKNOWN, f"stale data, from {wording.age(age)}: memwatchd is not sampling"
    known.sort(key=lambda one: (one.level, one.ratio), reverse=True)
    worst = known[0].level
    code = 2 if worst >= LEVELS.index(fail_on) else 1 if worst >= LEVELS.index(warn_on) else 0
    labels = labels_of(snapshot)
    shown = [one for one in known if one.level == worst] if worst else known[:1]
    sentences = [wording.verdict(labels[one.target], one) for one in shown[:MAX_NAMED]]
    more = f"; {len(shown) - MAX_NAMED} more" if len(shown) > MAX_NAMED else ""
    return code, "; ".join(sentences) + more


def perfdata(snapshot: Snapshot, targets: tuple[str, ...], fail_on: str, warn_on: str) -> str:
    """Return the use and the level of each target as performance data of a Nagios plugin, with their thresholds."""
    found, steps = [], [LEVELS.index(level) for level in (warn_on, fail_on)]
    for one in snapshot.pressure:
        if not targets or one.target in targets:
            name = one.target.replace("'", "").replace("=", "")
            used = ";".join(
                "" if isinstance(one.thresholds, Absent) else f"{one.thresholds.entry(level) * 100:g}"
                for level in steps
            )
            # A plugin's range alerts above its end.
            levels = ";".join(str(level - 1) for level in steps)
            found.append(f"'{name}'={one.ratio * 100:.1f}%;{used};0;100")
            found.append(f"'{name}_level'={int(one.level)};{levels};0;3")
    return " ".join(found)
