"""`memwatch doctor`: diagnosis of missing data, and a report for an issue."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from memwatch.cli import tables
from memwatch.cli.address import Address
from memwatch.cli.context import (
    EXIT_OK,
    ClientContext,
    build_context,
    check_shape,
    common,
    seconds_within,
)
from memwatch.cli.errors import EXIT_FAILURE

# The value of --report without a file.
DEFAULT_FILE = ""


@click.command(short_help="Diagnose missing data.")
@click.option(
    "--report",
    "file",
    is_flag=False,
    flag_value=DEFAULT_FILE,
    default=None,
    metavar="[FILE]",
    help="Write a redacted report for an issue.  [default: memwatch-report-DATE.tar.gz]",
)
@click.option(
    "--for",
    "seconds",
    callback=seconds_within("1s", "1h", "60s"),
    metavar="DURATION",
    help="Duration of the recording in the report, 1s to 1h; Ctrl-C ends it early.  [default: 60s]",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing report.")
@common
def doctor(file: str | None, seconds: float | None, overwrite: bool, url: Address | None, as_json: bool) -> int:
    """Diagnose missing data, with the cause and remedy of each problem. Report known incompatible versions.

    Exits with 1 if data is missing or wrong. With --report, it writes a redacted archive for an issue instead:
    versions, collectors, these results, files of /proc and /sys that memwatch reads, and a minute of recording.
    Run it as root to include files that only root may read. Look at the report before you send it.
    """
    context = build_context(url, as_json)
    if file is not None:
        return _report(context, Path(file) if file else None, 60.0 if seconds is None else seconds, overwrite)
    if seconds is not None or overwrite:
        raise click.UsageError("--for and --overwrite need --report")
    found = context.doctor().json
    with check_shape(context.address):
        code = EXIT_FAILURE if found["worst"] == "problem" else EXIT_OK
    return context.show(found, lambda: tables.check_lines(found)) or code


def _report(context: ClientContext, file: Path | None, seconds: float, overwrite: bool) -> int:
    from memwatch.cli.doctor_report import write_report

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    written = write_report(context, file, seconds, overwrite)
    return context.show(written.json(), written.lines)
