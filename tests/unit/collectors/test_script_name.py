"""Names of Python processes: their script or module, and their rank; nothing else of their command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.core.collectors.processes import Collector
from memwatch.core.linux.process_owners import MAX_SCRIPT_CHARACTERS, find_rank, find_script, is_generic
from memwatch.core.model import Process
from support.process_folders import add_process, folder_of, stat_line, statm_line


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("/usr/bin/python3 -u train.py --lr 1", "train.py"),
        ("python -X dev -W ignore /srv/jobs/train.py", "train.py"),
        ("python3.12 -Xdev -m vllm.entrypoints.openai.api_server --port 1", "vllm.entrypoints.openai.api_server"),
        ("python -um x.y", "x.y"),
        ("python --check-hash-based-pycs always s.py", "s.py"),
        ("/venv/bin/pypy3 serve", "serve"),
        ("python3 -c password=x", None),
        ("python3 -uc password=x", None),
        ("python3 - password=x", None),
        ("python3", None),
        ("python3 -m", None),
        ("", None),
        ("/opt/app/server --token x", "server"),
    ],
)
def test_script_is_the_first_argument_that_is_no_option(line: str, script: str | None) -> None:
    """Code on the command line is no name, and no argument after the name is kept."""
    assert find_script(line.split(" ")) == script


def test_hostile_script_name_is_printable_and_short() -> None:
    assert find_script(["python3", "/a/b\x1b]0;x\u202e.py"]) == "b\\u001b]0;x\\u202e.py"
    assert len(find_script(["python3", "x" * 5000]) or "") == MAX_SCRIPT_CHARACTERS


@pytest.mark.parametrize(
    ("arguments", "environment", "rank"),
    [
        (["--local-rank=3"], [], 3),
        (["--local_rank", "3"], [], 3),
        (["--local_rank=3"], [b"RANK=11", b"LOCAL_RANK=3"], 11),
        ([], [b"SLURM_PROCID=2"], 2),
        (["--local-rank", "-1"], [b"RANK=x"], None),
        (["--local-rank=99999999999"], [b"RANK"], None),
        ([], [b"XRANK=1"], None),
    ],
)
def test_rank_comes_from_the_launcher(arguments: list[str], environment: list[bytes], rank: int | None) -> None:
    """The variables of the launcher come before the options, and only numbers count."""
    assert find_rank(["python3", "t.py", *arguments], environment) == rank


def test_only_names_of_interpreters_are_replaced() -> None:
    assert [is_generic(name) for name in (b"python3.11", b"pt_main_thread", b"pypy3")] == [True] * 3
    assert [is_generic(name) for name in (b"vllm", b"pt_data_worker", b"python-app", b"")] == [False] * 4


def listed(procfs: Path, holders: frozenset[int]) -> dict[int, Process]:
    collector = Collector(folder_of(procfs), wanted=lambda: holders)
    found = {one.pid: one for one in collector.collect().processes}
    collector.close()
    return found


def test_title_is_the_script_and_the_name_stays(tmp_path: Path) -> None:
    """The environment is read of holders of device memory only."""
    files = {"cmdline": b"python3\0/home/ada/train.py\0--key\0s3cret\0", "environ": b"HOME=/\0RANK=5\0"}
    for pid, name in ((7, "pt_main_thread"), (8, "python3"), (9, "nginx")):
        add_process(tmp_path, stat_line(pid, name), statm=statm_line(5), **files)

    found = listed(tmp_path, frozenset({7}))

    assert [(one.title, one.name, one.rank) for _, one in sorted(found.items())] == [
        ("train.py", "pt_main_thread", 5),
        ("train.py", "python3", None),
        ("nginx", "nginx", None),
    ]
    assert "s3cret" not in repr(found)


def test_unreadable_command_line_leaves_the_name(tmp_path: Path) -> None:
    add_process(tmp_path, stat_line(7, "python3"), statm=statm_line(5))

    assert listed(tmp_path, frozenset())[7].title == "python3"
