"""Write deploy/grafana/dashboards/*.json with Grafana's builders (pip install grafana-foundation-sdk memwatch).

Run `python deploy/grafana/build.py` after a change in this folder; a test compares the result.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from fleet import UID as FLEET
from fleet import fleet
from machine import UID as MACHINE
from machine import machine

BOARDS = {FLEET: fleet, MACHINE: machine}


def render(dashboard: Dashboard) -> str:
    built = dashboard.build()
    for number, panel in enumerate(built.panels or [], 1):
        panel.id_val = number
    return JSONEncoder(sort_keys=True, indent=2).encode(built) + "\n"


def main(folder: Path) -> None:
    for uid, build in BOARDS.items():
        (folder / f"{uid}.json").write_text(render(build()))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "dashboards")
