"""Every block of every page runs. Those that are only checked are in `scripts.check_pages`."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_pages import verb_of
from support.daemon_process import get
from support.page_blocks import RUN_LANGUAGES, BlockError, check_shell, page_run
from support.page_settings import check_settings
from support.pages import Fence, fences, pages
from support.paths import ROOT
from support.waiting import wait_until

TEXTS = {str(page): (ROOT / page).read_text() for page in pages()}
BLOCKS = [(page, fence) for page, text in TEXTS.items() for fence in fences(text)]


def runs(fence: Fence) -> bool:
    return fence.language in RUN_LANGUAGES and verb_of(fence) in ("run", "live", "background")


# By page and line.
SETTINGS = {
    f"{page}:{fence.line}": fence
    for page, fence in BLOCKS
    if fence.language == "toml" and verb_of(fence) != "check"
}
RUNNING = [page for page, text in TEXTS.items() if any(runs(fence) for fence in fences(text))]


def test_pages_are_found() -> None:
    assert {"README.md", "docs/index.md", "docs/reference/metrics.md"} <= TEXTS.keys()
    assert len(RUNNING) >= 5


# Pages that a newcomer follows first; the others run after a change of a page or a command.
FIRST = ("README.md", "docs/start/first-look.md")


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page, marks=() if page in FIRST else pytest.mark.long) for page in RUNNING]
)
def test_blocks_run_in_order(page: str, tmp_path: Path) -> None:
    chosen = [fence for fence in fences(TEXTS[page]) if runs(fence)]
    with page_run(tmp_path, is_live=any(verb_of(fence) == "live" for fence in chosen)) as run:
        for fence in chosen:
            if verb_of(fence) == "background":
                run.start(fence)
            else:
                run.run(fence)


def test_demo_pair_of_its_page_is_shown_together(tmp_path: Path) -> None:
    """The commands under "Two machines on one page" are all that is needed."""
    page = "docs/howto/machines.md"
    with page_run(tmp_path, is_live=False) as run:
        for fence in filter(runs, fences(TEXTS[page])):
            (run.start if verb_of(fence) == "background" else run.run)(fence)

        def states() -> dict[str, str]:
            found = get(run.port, "/api/v1/machines").json
            return {one["name"]: one["state"] for one in found}

        wait_until(lambda: states() == {"spark-1a2b": "up", "ember": "up"}, describe=states)


@pytest.mark.parametrize("fence", SETTINGS.values(), ids=SETTINGS)
def test_settings_are_accepted(fence: Fence, tmp_path: Path) -> None:
    done = check_settings(fence.code, tmp_path)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "memwatch status --nonsense",
        "memwatch nonsense",
        "sudo memwatchd --nonsense",
        "FOO=1 memwatchd --once | memwatch --url http://a:1 nonsense",
        "make nonsense",
        "cp systemd/drop-ins/nonsense.conf /tmp",
        "cp /usr/share/doc/memwatchd/drop-ins/nonsense.conf /etc",
        "cp -r /usr/share/memwatchd/grafana/nonsense /etc/grafana",
        "ls /usr/share/doc/memwatchd/contributing/nonsense.md",
        "if true; then",
    ],
)
def test_shell_block_that_names_something_that_does_not_exist_is_refused(code: str) -> None:
    with pytest.raises(BlockError):
        check_shell(code)


@pytest.mark.parametrize(
    "code",
    [
        "memwatch --url http://gpu7:6360 --json devices",
        "memwatch run -- python train.py --epochs 3",
        "make deb DEB_ARGS='--arch arm64' && sudo apt install ./dist/memwatchd_*_amd64.deb",
        "cat > a.toml <<'EOF'\nmemwatch nonsense\nEOF\nmemwatchd --config a.toml --check-config",
        "cp /usr/share/doc/memwatchd/drop-ins/network.conf /etc/systemd/system/memwatchd.service.d/",
    ],
)
def test_shell_block_that_is_right_is_accepted(code: str) -> None:
    check_shell(code)


def test_failing_block_fails_with_its_output(tmp_path: Path) -> None:
    with page_run(tmp_path, is_live=True) as run:
        run.run(Fence("sh", "memwatch status && test -e train.py && touch made\n", 1, None))
        run.run(Fence("python", "import memwatch, pathlib\nassert pathlib.Path('made').exists()\n", 5, None))
        with pytest.raises(BlockError, match="line 9: exit code 22"):
            run.run(Fence("sh", "curl -s http://127.0.0.1:6360/nothing\ntrue\n", 9, None))
        with pytest.raises(BlockError, match=r"line 13: exit code 1(.|\n)*DeprecationWarning"):
            run.run(Fence("python", "import warnings\nwarnings.warn('x', DeprecationWarning)\n", 13, None))


def test_background_block_that_ends_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(BlockError, match="ended with 3"), page_run(tmp_path, is_live=True) as run:
        run.start(Fence("python", "raise SystemExit(3)\n", 1, None))
