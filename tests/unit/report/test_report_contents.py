"""Test the sentences about the contents of a report."""

from __future__ import annotations

from memwatch.reporting.report.contents import VALID, Contents
from memwatch.reporting.report.evidence import Evidence


def test_single_unread_file_is_counted_in_the_singular() -> None:
    summary = {
        "versions": {},
        "settings": VALID,
        "daemon": "reached",
        "machine": {"name": "NVIDIA DGX Spark"},
        "collectors": [],
        "doctor": {"checks": []},
        "recording": {"text": ""},
        "files": {"text": ""},
    }
    evidence = Evidence(unread={"proc/vmstat": "permission denied"})

    text = "\n".join(Contents(summary, b"", {}, evidence).lines("box.tar.gz", "1 KiB"))

    assert "1 file was not read (report.json lists them):\n  proc/vmstat: permission denied" in text
