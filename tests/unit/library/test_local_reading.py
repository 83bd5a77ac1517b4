"""Test that the library keeps the collectors' messages off the program's log, beside other threads."""

from __future__ import annotations

import logging
from typing import Any

from memwatch.library.local_reading import Quiet

COLLECTOR = logging.getLogger("memwatch.core.collectors.meminfo")


def test_levels_are_restored_after_the_last_of_several_readings() -> None:
    """Readings of two threads overlap: the first one that begins is the first one that ends."""
    quiet, before = Quiet(), COLLECTOR.level
    quiet.__enter__()
    quiet.__enter__()
    quiet.__exit__()
    during = COLLECTOR.level
    quiet.__exit__()

    assert (during, COLLECTOR.level) == (logging.ERROR, before)


def test_forked_child_logs_again() -> None:
    """No reading ends in the child of a fork during a reading."""
    quiet, before = Quiet(), COLLECTOR.level
    with quiet:
        quiet.after_fork()
        assert COLLECTOR.level == before
        quiet.__enter__()

    assert COLLECTOR.level == before


def test_reading_that_forks_leaves_the_child_able_to_read() -> None:
    """It ends in the child too, where it does not count."""
    quiet, before = Quiet(), COLLECTOR.level
    with quiet:
        quiet.after_fork()
    with quiet:
        during = COLLECTOR.level

    assert (during, COLLECTOR.level) == (logging.ERROR, before)


class ImportingName(str):
    """Name of a logger. While it is compared, another thread imports a module, which adds a logger."""

    def startswith(self, *wanted: Any) -> bool:
        logging.getLogger("program.imported")
        return super().startswith(*wanted)


def test_program_may_import_a_module_meanwhile() -> None:
    known = logging.root.manager.loggerDict
    logging.getLogger(ImportingName("program"))
    try:
        with Quiet():
            pass
        assert "program.imported" in known
    finally:
        for name in ("program", "program.imported"):
            known.pop(name, None)
