"""Advice for model servers, for the overview."""

from __future__ import annotations

from collections.abc import Mapping

from memwatch.core.snapshot import Snapshot


def advise_engines(snapshot: Snapshot) -> Mapping[str, str | None]:
    """Return the advice by engine. The planner is imported only if a server runs."""
    if not snapshot.engines:
        return {}
    from memwatch.planning.engine_advice import advise

    return {engine.id: advise(engine, snapshot) for engine in snapshot.engines}
