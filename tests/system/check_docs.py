"""Run the documentation blocks that need root and systemd on a machine with the package installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from machine import Machine
from support.pages import ROOT, Fence, fences, pages

BLOCKS = [
    (page, fence)
    for page in pages()
    for fence in fences((ROOT / page).read_text())
    if fence.directive == ("runs", "system")
]
# The commands run as root already.
HEAD = 'set -euo pipefail\nsudo() { "$@"; }\n'


def test_some_blocks_need_systemd() -> None:
    assert BLOCKS


@pytest.mark.parametrize(("page", "fence"), BLOCKS, ids=[f"{page}:{fence.line}" for page, fence in BLOCKS])
def test_block_runs_and_the_service_answers(installed: Machine, page: Path, fence: Fence) -> None:
    script = installed.root / "root" / f"{page.stem}-{fence.line}.sh"
    script.write_text(HEAD + fence.code)

    installed.run(f"cd /root && bash {script.name}")

    installed.wait_until(installed.answers)
    assert installed.property_of("ActiveState") == "active"
