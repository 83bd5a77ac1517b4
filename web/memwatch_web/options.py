"""What a user may decide about the faces."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FaceOptions:
    """May change while the faces are served.

    `hosts` are further names this machine answers to; `process_metrics` is how many processes /metrics names.
    """

    hosts: tuple[str, ...] = ()
    process_metrics: int = 0
