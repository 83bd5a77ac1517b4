"""An incident of a kill, with hostile text in it."""

from __future__ import annotations

from memwatch.reporting.incidents.records import Entry, Incident, Killer, Sample, Suspect

GIB = 1 << 30
INCIDENT = Incident(
    "20261121T102233Z",
    "kill",
    "ram",
    "System RAM",
    1000.0,
    1060.0,
    "x took it.",
    cause=Suspect("x|*", 7, None, None, GIB, 990.0, 2 * GIB),
    killer=Killer("kernel_oom", "kernel log: killed <b>"),
    evidence=("one", "two"),
    timeline=(Entry(1001.0, "level", "OK → critical"),),
    samples=(Sample(1001.0, 5, 3, {"x (7)": 2}),),
)
