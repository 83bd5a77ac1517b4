"""State of the daemon's configuration: is it in force, and what of it is not."""

from __future__ import annotations

from msgspec import Struct


class ConfigState(Struct, frozen=True):
    """`problems`: a sentence for each setting that is not in force.

    `is_loaded`: the latest start or reload took the configuration as it is. `loaded_unix`: when one did; None if it
    has not happened since memwatchd started.
    """

    problems: tuple[str, ...] = ()
    is_loaded: bool = True
    loaded_unix: float | None = None

    @property
    def notice(self) -> str:
        """Return the state as a part of a line, empty if everything is in force."""
        if not self.problems:
            return ""
        problems = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        return f"configuration not in force: {problems}, see memwatch doctor"
