"""Lines of the kernel log, parts of which any program with a device may have written."""

from __future__ import annotations

from fuzz.oracle import are_valid, numbers_of
from memwatch.core.linux.kmsg_parser import (
    MAX_ERRORS,
    MAX_KILLS,
    MAX_TEXT_LENGTH,
    KernelLogTracker,
    may_matter,
    parse_record,
)
from memwatch.core.model import Absent

# Maximum length of a kernel log record.
MAX_BYTES = 8192
# Length of the repr of a byte that is not UTF-8.
ESCAPED = 4


def check(data: bytes) -> None:
    notebook = KernelLogTracker()
    for line in data.split(b"\n"):
        record = parse_record(line)
        assert record is None or (record.facility >= 0 and record.sequence in numbers_of(line))
        may_matter(line)
        notebook.read(record.text if record else line, 1.0)
    log = notebook.log
    are_valid(log)
    assert len(log.kills) <= MAX_KILLS
    assert len(log.driver_errors) <= MAX_ERRORS
    for kill in log.kills:
        figures = {kill.pid} if isinstance(kill.anonymous_bytes, Absent) else {kill.pid, kill.anonymous_bytes >> 10}
        assert figures <= numbers_of(data)
        assert len(kill.name) <= MAX_TEXT_LENGTH * ESCAPED
    assert [kill.number for kill in log.kills] == sorted({kill.number for kill in log.kills})
