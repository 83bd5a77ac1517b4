"""Check the laws of alerts on random histories, and stop at the first violation with a small example.

    PYTHONPATH=tests python -m scripts.alert_laws --count 1000000 [--processes 2] [--first SEED] [--seconds 3600]

Each history has a number, its seed. Exits with 1 after a violation, and prints the seed, the sentence of the law,
and the shortest history found that breaks the same law. With `--seconds` it ends before all histories are checked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from support.generated.alert_history import Plan, draw_plan
from support.generated.alert_laws import check_history
from support.generated.campaign import Campaign, main


def describe(plan: Plan) -> Iterator[str]:
    """Yield the settings, and each change with the pauses before the ticks that follow it."""
    yield f"{plan.rules}"
    for step in plan.steps:
        yield f"  {step.act.name} {step.act.number} {step.act.other}, ticks after {step.pauses} s"


if __name__ == "__main__":
    sys.exit(main(Campaign("histories", draw_plan, check_history, describe), __doc__))
