"""What a user may decide about the faces."""

from __future__ import annotations

from dataclasses import dataclass

from memwatch_web.auth import Login


@dataclass(frozen=True, slots=True)
class FaceOptions:
    """May change while the faces are served. `hosts` are further names this machine answers to."""

    hosts: tuple[str, ...] = ()
    process_metrics: bool = False
    login: Login = Login()
