"""Files are found by pattern, with the links on the way, never outside their root. A report says what it has."""

from __future__ import annotations

from pathlib import Path

from memwatch.reporting.report.contents import VALID, Contents, Evidence
from memwatch.reporting.report.sources import Walk


def tree(root: Path) -> Path:
    device = root / "devices/pci0/card"
    (device / "drm/card0").mkdir(parents=True)
    (device / "vendor").write_text("0x1002\n")
    (root / "class/drm").mkdir(parents=True)
    (root / "class/drm/card0").symlink_to("../../devices/pci0/card/drm/card0")
    (device / "drm/card0/device").symlink_to("../..")
    return root


def test_files_behind_links_are_found_at_their_real_place(tmp_path: Path) -> None:
    walk = Walk(tree(tmp_path))

    assert list(walk.find("class/drm/card*/device/vendor")) == ["devices/pci0/card/vendor"]
    assert walk.links == {
        "class/drm/card0": "../../devices/pci0/card/drm/card0",
        "devices/pci0/card/drm/card0/device": "../..",
    }


def test_links_out_of_the_root_and_loops_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("x")
    for name, target in (("up", ".."), ("absolute", str(tmp_path)), ("loop", "loop")):
        (root / name).symlink_to(target)
    walk = Walk(root)

    assert [path for name in ("up", "absolute", "loop") for path in walk.find(f"{name}/secret")] == []


def test_missing_files_are_not_mentioned(tmp_path: Path) -> None:
    walk = Walk(tree(tmp_path))

    assert list(walk.find("class/hwmon/*/name")) == []
    assert walk.unread == {}


def test_single_unread_file_is_counted_in_the_singular() -> None:
    summary = {
        "versions": {},
        "settings": VALID,
        "daemon": "reached",
        "machine": {"name": "NVIDIA DGX Spark"},
        "collectors": [],
        "doctor": {"checks": []},
        "recording": {"text": ""},
        "files": {"text": ""},
    }
    evidence = Evidence(unread={"proc/vmstat": "permission denied"})

    text = "\n".join(Contents(summary, b"", {}, evidence).lines("box.tar.gz", "1 KiB"))

    assert "1 file was not read (report.json lists them):\n  proc/vmstat: permission denied" in text
