"""Snapshot of PyTorch's allocator, as `torch.cuda.memory._snapshot` describes it."""

from __future__ import annotations

from typing import Any

MIB = 1 << 20
INSIDE = {
    "filename": "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py",
    "line": 125,
    "name": "forward",
}


def frame(line: int, name: str) -> dict[str, Any]:
    return {"filename": "/home/user/train.py", "line": line, "name": name}


def block(size: int, frames: list[Any], state: str = "active_allocated") -> dict[str, Any]:
    return {"address": 1 << 46, "size": size, "requested_size": size, "state": state, "frames": frames}


def sample_snapshot() -> dict[str, Any]:
    """Build one with two places, a block without a stack, and 20 MiB that are reserved and unused."""
    forward = [INSIDE, frame(40, "forward"), INSIDE, frame(80, "main")]
    segments = [
        [block(200 * MIB, forward), block(12 * MIB, [], "inactive"), block(100 * MIB, forward)],
        [block(60 * MIB, [INSIDE, frame(12, "load")]), block(8 * MIB, [], "inactive")],
        [block(40 * MIB, [])],
    ]
    return {
        "segments": [
            {
                "device": 0,
                "address": 1 << 46,
                "total_size": sum(one["size"] for one in blocks),
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "blocks": blocks,
            }
            for blocks in segments
        ],
        "device_traces": [[{"action": "alloc", "size": 5}, {"action": "oom", "size": 7, "device_free": 3}]],
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1, "roundup_power2_divisions": {}},
        "external_annotations": [],
    }
