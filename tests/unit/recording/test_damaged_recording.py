"""Test that damage to a recording is reported, and that other files are neither played nor overwritten."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memwatch.core.wire import to_bytes
from memwatch.reporting.recording import DamagedPart, RecordingError, RecordingFile, read_lines
from memwatch.reporting.render.json import snapshot_json
from memwatchd.recording.player import Player, ReplayClock, open_recording, read_frames
from support.fakes import GIB
from support.recordings import recorded, seconds_in, snapshot_at


def test_unreadable_snapshots_are_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Intact lines of another version, in the middle. The log has their number once, after the first round."""
    path = tmp_path / "a.mwr"
    file = RecordingFile(path, host="spark")
    for second in range(5):
        line = to_bytes(snapshot_json(snapshot_at(second)))
        file.write(line if second not in (2, 3) else line.replace(b'"pools":[', b'"pools":["a pool in words",'))
    file.close()
    clock = ReplayClock(1e9, 1.0)
    player = Player(open_recording(path, salvage=False), clock)

    for _ in range(12):
        player.gather()
        clock.skip(1.0)

    assert seconds_in(path) == [0, 1, 4]
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "snapshots left out: 2 cannot be read; play them with the version that made them"
    ]


def test_killed_recorder_loses_no_line(tmp_path: Path) -> None:
    """Without its end the file is rejected with a hint at --salvage, which plays all of it."""
    path = tmp_path / "box.memwatch"
    recorded(path, 20)
    path.write_bytes(path.read_bytes()[:-10])

    with pytest.raises(
        RecordingError, match=r"damaged after 20 snapshots: the file is truncated; --salvage plays the 20"
    ):
        open_recording(path, salvage=False)

    assert open_recording(path, salvage=True).count == 20
    recorded(path, 5, first=200)
    assert open_recording(path, salvage=True).count == 25


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30))
def test_damage_is_reported_and_readable_parts_are_played(tmp_path: Path, seed: int) -> None:
    """Flipped, truncated or overwritten anywhere: one message, no traceback, and no value that was not recorded."""
    chance = random.Random(seed)
    path = tmp_path / "box.memwatch"
    path.unlink(missing_ok=True)
    recorded(path, 30)
    recorded(path, 30, first=100)
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    if chance.random() < 0.3:
        del data[at:]
    else:
        data[at : at + chance.randrange(1, 50)] = chance.randbytes(chance.randrange(1, 50))
    path.write_bytes(data)

    with suppress(RecordingError):
        assert open_recording(path, salvage=True).count <= 60
    original = {second: snapshot_at(second, (second % 60) * GIB) for second in (*range(30), *range(100, 130))}
    assert all(frame.pools == original[frame.seq].pools for frame in read_frames(path))
    assert set(seconds_in(path)) <= {*range(30), *range(100, 130)}
    assert all(isinstance(line, bytes | DamagedPart) for line in read_lines(path))


def test_damage_in_one_part_leaves_the_others(tmp_path: Path) -> None:
    """The recorder ran three times; damage in the second part affects the second part only."""
    path = tmp_path / "box.memwatch"
    recorded(path, 10)
    start = path.stat().st_size
    recorded(path, 10, first=100)
    recorded(path, 10, first=200)
    data = bytearray(path.read_bytes())
    data[start + 400 : start + 420] = bytes(20)
    path.write_bytes(data)

    found = seconds_in(path)

    assert found[:10] == list(range(10))
    assert found[-10:] == list(range(200, 210))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "it has no header"),
        (b"\x00" * 100, "it has no header"),
        (b"root:x:0:0:root:/root:/bin/bash\n", "make one with: memwatch record FILE"),
    ],
)
def test_other_file_is_rejected_and_not_written(tmp_path: Path, content: bytes, sentence: str) -> None:
    """It is neither played nor appended to."""
    path = tmp_path / "notes.txt"
    path.write_bytes(content)

    with pytest.raises(RecordingError, match=sentence):
        open_recording(path, salvage=True)
    if content:
        with pytest.raises(RecordingError):
            RecordingFile(path, host="spark")
        assert path.read_bytes() == content


def test_recording_of_another_format_names_its_version(tmp_path: Path) -> None:
    """The message has both formats and the version that wrote the file."""
    import gzip

    path = tmp_path / "new.memwatch"
    path.write_bytes(gzip.compress(b'{"crc": 1, "memwatch_recording": 2, "version": "9.1.0"}\n'))

    with pytest.raises(RecordingError, match=r"format 2, made by memwatchd 9\.1\.0; this reads format 1"):
        open_recording(path, salvage=True)


@pytest.mark.parametrize("place", [os.symlink, os.link], ids=["link", "hard link"])
@pytest.mark.parametrize("text", ["", "precious"], ids=["empty", "text"])
def test_recording_through_a_prepared_link_is_refused(
    tmp_path: Path, text: str, place: Callable[[Path, Path], None]
) -> None:
    """Root may record to /tmp, where another user can prepare the name. An empty file of root counts, too."""
    victim = tmp_path / "victim"
    victim.write_text(text)
    path = tmp_path / "box.memwatch"
    place(victim, path)

    with pytest.raises(RecordingError, match=r"cannot record to .*: it (is a link|has 2 names .*); name a file"):
        RecordingFile(path, host="spark")

    assert victim.read_text() == text


def test_root_records_through_no_folder_that_is_a_link_of_another_user(tmp_path: Path) -> None:
    """Only root can give a link away here. A link of this user is followed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "work").symlink_to(tmp_path / "elsewhere")
    RecordingFile(tmp_path / "work/own.memwatch", host="spark").close()

    assert (tmp_path / "elsewhere/own.memwatch").exists()
    if os.geteuid() == 0:
        os.lchown(tmp_path / "work", 54321, 54321)
        with pytest.raises(RecordingError, match="leads through a link of another user"):
            RecordingFile(tmp_path / "work/box.memwatch", host="spark")
    assert not (tmp_path / "elsewhere/box.memwatch").exists()


def test_recording_to_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """Only root can create one here. A file of this user is appended to."""
    path = tmp_path / "box.memwatch"
    RecordingFile(path, host="spark").close()
    as_root = os.geteuid() == 0
    if as_root:
        os.chown(path, 65534, 65534)
    before = path.read_bytes()

    try:
        RecordingFile(path, host="spark").close()
        refused = ""
    except RecordingError as error:
        refused = str(error)

    assert ("belongs to another user (uid 65534)" in refused) is as_root
    assert (path.read_bytes() == before) is as_root
