"""Summary of PyTorch's allocator snapshot, by the names of torch/cuda/memory.py."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from memwatch.training import allocator_snapshot
from memwatch.training.allocator_snapshot import read_snapshot, summarize
from memwatch.training.pickle_reader import PickleRefusedError
from support.torch_snapshot import MIB, block, frame, sample_snapshot


def test_blocks_are_grouped_by_the_programs_own_line() -> None:
    """Frames inside PyTorch are left out. Unused memory and blocks without a stack are counted on their own."""
    summary = summarize(sample_snapshot())

    (device,) = summary.devices
    assert (device.reserved_bytes, device.allocated_bytes, device.unused_bytes) == (420 * MIB, 400 * MIB, 20 * MIB)
    assert device.largest_unused_bytes == 12 * MIB
    assert [(one.location, one.total_bytes // MIB, one.blocks) for one in summary.sites] == [
        ("/home/user/train.py:40 forward", 300, 2),
        ("/home/user/train.py:12 load", 60, 1),
    ]
    assert summary.sites[0].stack == ("/home/user/train.py:40 forward", "/home/user/train.py:80 main")
    assert (summary.unrecorded_bytes, summary.blocks, summary.out_of_memory) == (40 * MIB, 4, 1)


def test_older_snapshot_has_its_stacks_in_the_history() -> None:
    """The format of PyTorch 2.0. A stack that is only PyTorch's own is shown as it is."""
    frames = [{"filename": "/usr/lib/torch/nn.py", "line": 3, "name": "linear"}]
    old = {"size": 5, "state": "active_allocated", "history": [{"addr": 1, "frames": frames}]}

    summary = summarize({"segments": [{"total_size": 8, "blocks": [old]}]})

    assert [one.location for one in summary.sites] == ["/usr/lib/torch/nn.py:3 linear"]


def test_names_in_a_snapshot_are_made_printable() -> None:
    frames = [{"filename": "\x1b[2Jevil.py", "line": 1, "name": "a\nb"}]
    found = {"segments": [{"total_size": 8, "blocks": [block(8, frames)]}]}

    assert summarize(found).sites[0].location == "\\u001b[2Jevil.py:1 a\\u000ab"


@pytest.mark.parametrize("broken", [{"filename": None}, {"name": 7}, {"line": "12"}, {"line": None}])
def test_frame_with_a_damaged_field_is_left_out_of_the_stack(broken: dict[str, object]) -> None:
    """The other frames of the stack are shown; a block with no other frame has no stack."""
    damaged = {**frame(12, "load"), **broken}
    blocks = [block(8, [damaged, frame(80, "main")]), block(4, [damaged])]

    summary = summarize({"segments": [{"total_size": 12, "blocks": blocks}]})

    assert [one.stack for one in summary.sites] == [("/home/user/train.py:80 main",)]
    assert summary.unrecorded_bytes == 4


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], 'no list "segments"'),
        ({"segments": 5}, 'no list "segments"'),
        ({"segments": [5]}, 'a segment has no list "blocks"'),
        ({"segments": [{"blocks": [], "total_size": -1}]}, '"total_size" is missing'),
        ({"segments": [{"blocks": [7], "total_size": 1}]}, "a block is not a dict"),
        ({"segments": [{"blocks": [{"size": True}], "total_size": 1}]}, '"size" is missing'),
        ({"segments": [{"blocks": [{"size": 1 << 70}], "total_size": 1}]}, '"size" is missing'),
    ],
)
def test_other_shapes_are_refused(found: Any, words: str) -> None:
    with pytest.raises(PickleRefusedError, match=words):
        summarize(found)


def test_shared_lists_cannot_multiply_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand segments with the same list of a thousand blocks are a small file and a million blocks."""
    monkeypatch.setattr(allocator_snapshot, "MAX_BLOCKS", 10_000)
    segment = {"total_size": 1, "blocks": [block(1, [])] * 1000}

    with pytest.raises(PickleRefusedError, match="more than 10,000 blocks"):
        summarize({"segments": [segment] * 1000})
    with pytest.raises(PickleRefusedError, match="more than 10,000 entries"):
        summarize({"segments": [], "device_traces": [[{}] * 1000] * 1000})


def test_file_is_read_and_errors_name_it(tmp_path: Path) -> None:
    """A named pipe is not opened, as that would wait for its writer."""
    good, bad = tmp_path / "good.pickle", tmp_path / "bad.pickle"
    good.write_bytes(pickle.dumps(sample_snapshot()))
    bad.write_bytes(pickle.dumps(os.getpid))
    os.mkfifo(tmp_path / "pipe")

    assert read_snapshot(good).blocks == 4
    with pytest.raises(
        PickleRefusedError, match=r"bad\.pickle cannot be read as a snapshot of PyTorch: .*; save one"
    ):
        read_snapshot(bad)
    with pytest.raises(PickleRefusedError, match="is not a file"):
        read_snapshot(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        read_snapshot(tmp_path / "missing")


@pytest.mark.parametrize(
    ("state", "allocated", "unused"),
    [
        ("active_allocated", 30, 0),
        ("active_pending_free", 30, 0),
        ("active_awaiting_free", 30, 0),
        ("inactive", 0, 30),
    ],
)
def test_blocks_that_wait_to_be_freed_are_not_unused(state: str, allocated: int, unused: int) -> None:
    """Another stream still uses a pending block, so no allocation can take it. It counts with its place."""
    frames = [frame(7, "send")]
    found = {"segments": [{"total_size": 30 * MIB, "blocks": [block(30 * MIB, frames, state)]}]}

    summary = summarize(found)

    (device,) = summary.devices
    figures = device.allocated_bytes, device.unused_bytes, device.largest_unused_bytes
    assert figures == (allocated * MIB, unused * MIB, unused * MIB)
    assert [one.total_bytes for one in summary.sites] == [30 * MIB] * bool(allocated)
    assert summary.blocks == bool(allocated)
