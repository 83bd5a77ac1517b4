"""Reports of strangers: whatever is in them, nothing is written outside the new folder."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.reporting.report.contents import FOLDER, FORMAT, KEY, SUMMARY, build_archive
from scripts.machine_from_report import make_machine, slug
from support import report_bundle
from support.report_bundle import BundleError, read_bundle

MEMINFO = f"{FOLDER}/files/proc/meminfo"
Change = Callable[[tarfile.TarInfo], None]


def summary(links: Any = None, **fields: Any) -> dict[str, Any]:
    machine = {"name": "NVIDIA DGX Spark"}
    return {KEY: FORMAT, "page_size": 4096, "machine": machine, "files": {"links": links or {}}, **fields}


def archive(members: dict[str, bytes], found: dict[str, Any] | None = None) -> bytes:
    return build_archive({SUMMARY: json.dumps(found or summary()).encode(), **members}, 0)


def changed_archive(*changes: Change) -> bytes:
    """Return an archive with a valid report.json, and one member per change."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        data = json.dumps(summary()).encode()
        first = tarfile.TarInfo(f"{FOLDER}/{SUMMARY}")
        first.size = len(data)
        tar.addfile(first, io.BytesIO(data))
        for change in changes:
            member = tarfile.TarInfo(MEMINFO)
            change(member)
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return gzip.compress(file.getvalue())


def named(name: str) -> Change:
    return lambda member: setattr(member, "name", name)


def typed(kind: bytes, target: str = "") -> Change:
    def change(member: tarfile.TarInfo) -> None:
        member.type, member.linkname = kind, target

    return change


def rejected(tmp_path: Path, data: bytes) -> str:
    """Return why a report is rejected. Nothing is written."""
    file, machines = tmp_path / "report.tar.gz", tmp_path / "machines"
    file.write_bytes(data)
    machines.mkdir()
    with pytest.raises(BundleError) as error:
        make_machine(read_bundle(file), machines, "new")
    assert list(machines.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"report.tar.gz", "machines"}
    return str(error.value)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([named(f"{FOLDER}/files/proc/../../../x")], "is not a path below"),
        ([named(f"{FOLDER}/../x")], "is not a path below"),
        ([named("/etc/passwd")], "is not a path below"),
        ([named(f"{FOLDER}/files/proc//x")], "is not a path below"),
        ([named(f"{FOLDER}/files/proc/a\nb")], "is not a path below"),
        ([named("other/files/proc/meminfo")], "is not a path below"),
        ([named(f"{FOLDER}/files/etc/passwd")], "is not a file of a report"),
        ([named(f"{FOLDER}/setup.py")], "is not a file of a report"),
        ([typed(tarfile.SYMTYPE, "/etc/passwd")], "is not a plain file"),
        ([typed(tarfile.LNKTYPE, "../../x")], "is not a plain file"),
        ([typed(tarfile.CHRTYPE)], "is not a plain file"),
        ([typed(tarfile.FIFOTYPE)], "is not a plain file"),
        ([typed(tarfile.DIRTYPE)], "is not a plain file"),
        ([named(MEMINFO), named(MEMINFO)], "twice"),
        ([named(MEMINFO), named(f"{FOLDER}/files/proc/meminfo/x")], "is below another file"),
        ([lambda member: setattr(member, "size", report_bundle.MAX_MEMBER_BYTES + 1)], "bytes, more than"),
    ],
)
def test_hostile_members_are_rejected(changes: Iterable[Change], why: str, tmp_path: Path) -> None:
    assert why in rejected(tmp_path, changed_archive(*changes))


@pytest.mark.parametrize(
    ("links", "why"),
    [
        ({"proc/x": "../../etc"}, "leaves its folder"),
        ({"proc/x": "/etc/passwd"}, "leaves its folder"),
        ({"proc/x": "/dev/../etc/passwd"}, "leaves its folder"),
        ({"proc/x": "../sys/x"}, "leaves its folder"),
        ({"../x": "y"}, "is not below"),
        ({"etc/x": "y"}, "is not below"),
        ({"proc/meminfo": "version"}, "is a file and a link"),
        ({"proc/a": "b", "proc/a/c": "d"}, "is below the link"),
        (["proc/x"], "no valid list of links"),
    ],
)
def test_hostile_links_are_rejected(links: Any, why: str, tmp_path: Path) -> None:
    assert why in rejected(tmp_path, archive({"files/proc/meminfo": b"x"}, summary(links)))


def test_links_that_lead_out_through_each_other_are_rejected(tmp_path: Path) -> None:
    """Each target stays inside by its words: `b` is three levels higher than its path, so `a` ends elsewhere."""
    links = {"sys/d/d/d/b": "../../../e", "sys/a": "d/d/d/b/../../../x"}

    assert "out of the folder" in rejected(tmp_path, archive({"files/proc/meminfo": b"x"}, summary(links)))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is truncated"),
        (b"PK\x03\x04", "it is not a .tar.gz"),
        (gzip.compress(b"x" * 2000), "damaged"),
        (archive({})[:-20], "it is truncated"),
        (gzip.compress(b"\0" * (report_bundle.MAX_BYTES + 1)), "unpacks to more than"),
        (build_archive({"README.txt": b"x"}, 0), f"it has no {SUMMARY}"),
        (build_archive({SUMMARY: b"[" * 100_000}, 0), "is not a JSON object"),
        (archive({}, {KEY: 2}), "it is a report of format 2"),
        (archive({}, summary(files={"why_none": "the data is simulated"})), "the data is simulated"),
        (archive({"files/proc/meminfo": b"x"}, summary(page_size=7)), "its page size is 7"),
    ],
    ids=["empty", "zip", "no tar", "cut", "bomb", "no summary", "deep", "format", "simulated", "page size"],
)
def test_unusable_reports_are_rejected_with_the_reason(data: bytes, why: str, tmp_path: Path) -> None:
    assert why in rejected(tmp_path, data)


@given(st.binary(max_size=600))
def test_any_archive_is_read_or_rejected(data: bytes) -> None:
    with pytest.raises(BundleError):
        report_bundle.read_members(data + b"x")


def test_existing_machine_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "gb10").mkdir()
    file = tmp_path / "report.tar.gz"
    file.write_bytes(archive({"files/proc/meminfo": b"x"}))

    with pytest.raises(BundleError, match=r"gb10 exists; choose another name with NAME="):
        make_machine(read_bundle(file), tmp_path, "gb10")


@pytest.mark.parametrize("name", ["../x", "A", "", "a/b", ".x"])
def test_name_of_a_machine_is_checked(name: str, tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"
    file.write_bytes(archive({"files/proc/meminfo": b"x"}, summary(machine={})))

    with pytest.raises(BundleError, match="set NAME="):
        make_machine(read_bundle(file), tmp_path, name)


def test_folder_is_named_after_the_machine() -> None:
    assert slug(summary()) == "nvidia-dgx-spark"
