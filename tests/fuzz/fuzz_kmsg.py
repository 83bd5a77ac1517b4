"""Lines of the kernel's log, which any program with a device may have written a part of."""

from __future__ import annotations

from fuzz.oracle import are_figures, said
from memwatch.linux.kmsg_parser import KEPT_KILLS, MOST_ERRORS, MOST_TEXT, Notebook, parse_record, worth_a_look

# As long as a record of the kernel's can be.
MOST_BYTES = 8192
# What a repr of a byte that is no UTF-8 takes.
ESCAPED = 4


def check(data: bytes) -> None:
    notebook = Notebook()
    for line in data.split(b"\n"):
        record = parse_record(line)
        assert record is None or (record.facility >= 0 and record.sequence in said(line))
        worth_a_look(line)
        notebook.read(record.text if record else line, 1.0)
    log = notebook.log
    are_figures(log)
    assert len(log.kills) <= KEPT_KILLS
    assert len(log.driver_errors) <= MOST_ERRORS
    for kill in log.kills:
        assert {kill.pid, kill.anonymous_bytes >> 10} <= said(data)
        assert len(kill.name) <= MOST_TEXT * ESCAPED
    assert [kill.number for kill in log.kills] == sorted({kill.number for kill in log.kills})
