"""Run the long tests that a change concerns: `make test-long-of-change`, a part of .ci/run.

Every sample of every page in a browser takes minutes, and cannot fail by a change elsewhere. `make test-long` runs
all of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

import pytest

from scripts.process_lane import FOLDER, Lane
from support.change_base import Repository, find_base
from support.paths import ROOT

NEEDED_PROGRAMS = ("git",)
TRACE_WORDS = ("tests/unit/pressure/test_trace_words.py",)
# Long tests that read pages, those outside of the folder of browsers too.
PAGE_READERS = (
    "tests/browser",
    "tests/deploy/test_dashboards.py::test_incident_annotations_link_to_the_page_of_the_incident",
    "tests/deploy/test_debian_way.py",
    "tests/faults/test_fault_disks.py",
    "tests/integration/test_mdns.py",
)
# Changed files, and the long tests that are about them. A changed test file is always run.
CONCERNED = {
    r"web/memwatch_web/(templates|static|pages)/": PAGE_READERS,
    r"daemon/(memwatch/reporting|memwatch_monitor)/history/": ("tests/integration/test_history_disk.py",),
    r"daemon/memwatch_monitor/neighbours/": (
        "tests/integration/test_neighbours.py",
        "tests/integration/test_mdns.py",
    ),
    r"daemon/memwatch_monitor/notify/": (
        "tests/integration/test_alert_flood.py",
        "tests/integration/test_receivers_reload.py",
    ),
    r"daemon/memwatch/core/pressure/": ("tests/unit/pressure", "tests/integration/test_collapse.py"),
    r"daemon/memwatch/(reporting/render/(words|summary)|cli/terminal/frame|core/units)": TRACE_WORDS,
    r"daemon/memwatch_monitor/(render/status_line|pacing)": TRACE_WORDS,
    r"tests/traces/": ("tests/unit/pressure",),
    r"daemon/memwatch/core/(collectors|linux)/meminfo": ("tests/unit/collectors/test_meminfo_fields.py",),
    r"daemon/memwatch/cli/mqtt": ("tests/integration/client/test_mqtt.py",),
    r"daemon/memwatch/reporting/report/": ("tests/integration/test_report.py",),
    r"(deploy|systemd)/|pyproject.toml": ("tests/deploy/test_deb.py", "tests/deploy/test_package.py"),
    r"deploy/(grafana|prometheus)/|web/memwatch_web/metrics/": ("tests/deploy/test_dashboards.py",),
    r"(README|CONTRIBUTING).md|docs/|daemon/memwatch/cli/": ("tests/integration/test_docs_blocks.py",),
    r"daemon/memwatch/core/(collectors|drivers)/.*tegra": ("tests/integration/test_tegra_daemon.py",),
    r"tests/(hardware|simulators)/": ("tests/integration/test_hardware_run.py",),
}
# Minutes for each of five demos beside two that are run.
LEFT_OUT = "tests/browser/test_shift_watch.py::test_no_page_of_another_demo_moves_in_ten_minutes"
TEST_FILE = re.compile(r"tests/.*/test_\w+\.py")


def main(arguments: list[str]) -> int:
    repository = Repository(ROOT)
    base = find_base(repository)
    tests = concerned(repository.git("diff", "--name-only", "--diff-filter=d", base.commit).splitlines())
    print(f"compared with the {base}: {' '.join(tests) or 'no long tests are concerned'}", flush=True)
    if not tests:
        return 0
    # With a second look, as tests of the other lane that start processes.
    options = ("-n", "auto", "-m", "long", f"--deselect={LEFT_OUT}")
    code = Lane(ROOT, FOLDER / "long").run([*options, *tests, *arguments]).exit_code
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code  # changed files have no long tests


def concerned(changed: Iterable[str]) -> list[str]:
    """Return the folders and files of tests that are about these changed files."""
    found: set[str] = set()
    for name in changed:
        found |= {test for pattern, tests in CONCERNED.items() if re.match(pattern, name) for test in tests}
        if TEST_FILE.fullmatch(name):
            found.add(name)
    return sorted(one for one in found if not any(one.startswith((f"{each}/", f"{each}::")) for each in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
