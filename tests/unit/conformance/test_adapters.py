"""Adapters of the conformance suite: the figures that each tool shows, from a short sample of its output."""

from __future__ import annotations

import json

import pytest

from conformance import tools
from conformance.rules import Answer
from conformance.tools import TOOLS, amount, parse_btop, parse_free, parse_glances, parse_gpustat, parse_htop

MIB, GIB = 1 << 20, 1 << 30


def test_gpustat_without_memory_of_the_gpu_has_its_processes() -> None:
    gpu = {
        "index": 0,
        "memory.total": None,
        "memory.used": None,
        "processes": [{"pid": 3921, "gpu_memory_usage": 63931}],
    }

    assert parse_gpustat(json.dumps({"gpus": [gpu]})) == {"gpu0.process.3921": Answer(63931 * MIB, MIB)}


def test_gpustat_with_memory_of_the_gpu_has_its_size_and_use() -> None:
    text = json.dumps({"gpus": [{"index": 1, "memory.total": 24564, "memory.used": 13744, "processes": None}]})

    assert parse_gpustat(text) == {"gpu1.size": Answer(24564 * MIB, MIB), "gpu1.used": Answer(13744 * MIB, MIB)}


def test_glances_has_a_ratio_of_a_gpu_only_where_it_shows_a_percentage() -> None:
    memory, swap = {"total": 8, "available": 3, "used": 5, "free": 1}, {"total": 2, "used": 1}
    gpus = [{"mem": None}, {"mem": 56}]

    found = parse_glances("a warning\n" + json.dumps({"mem": memory, "memswap": swap, "gpu": gpus}))

    assert found["ram.used"] == Answer(5)
    assert found["swap.size"] == Answer(2)
    assert {key: one for key, one in found.items() if key.startswith("gpu")} == {
        "gpu1.used_ratio": Answer(0.56, 0.01)
    }


NVTOP = """
 Device 0 [NVIDIA GeForce RTX 4090] PCIe GEN N/A RX: N/A TX: N/A
 GPU 2715MHz MEM 10501MH TEMP  61fC   FAN N/A   POW 287 W
 GPU[|||||93%] MEM[||||||13.422Gi/23.988Gi]
 Device 1 [NVIDIA GB10] PCIe GEN N/A RX: N/A TX: N/A
 GPU[|||||96%] MEM[            N/A]
    PID USER DEV     TYPE  GPU        GPU MEM    CPU  HOST MEM Command
  31337 root   0  Compute N/A   12610MiB  51%     0%   6144MiB python3
   3921 root   1  Compute N/A        63931MiB     0%   5120MiB vllm
   2101 root   0  Graphic   1%    412MiB   2%     0%    140MiB Xorg
     23 root   0  Compute N/A         N/A         0%    140MiB without bytes in the driver's list
"""


def test_nvtop_has_bars_and_processes_and_nothing_for_a_bar_without_a_value() -> None:
    found = tools.parse_nvtop(NVTOP)

    assert found.keys() == {
        "gpu0.used",
        "gpu0.size",
        "gpu0.process.31337",
        "gpu1.process.3921",
        "gpu0.process.2101",
    }
    assert found["gpu0.used"].value == pytest.approx(13.422 * GIB)
    assert found["gpu1.process.3921"] == Answer(63931 * MIB, MIB)


BTOP = """
│                        ⢸⣿├─┐vram┌──────────┐10501 MHz┌┬─Used:───────13.4 GiB─┤│
│                        ⢸⣿│ Total:            23.9 GiB │  56%                 ││
│ Total:                 62.0 GiB ├swap───────────7.99─GiB─┤
├─Used:──────────────────16.7─GiB─┤ Used:  0% ■■■   0 Byte │
├─Available:─────────────45.3─GiB─┤
├─Free:──────────────────9.03─GiB─┤
"""


def test_btop_has_the_boxes_of_memory_and_of_the_gpu() -> None:
    found = parse_btop(BTOP)

    assert {key: one.value / GIB for key, one in found.items()} == pytest.approx(
        {
            "gpu0.used": 13.4,
            "gpu0.size": 23.9,
            "ram.size": 62.0,
            "ram.used": 16.7,
            "ram.available": 45.3,
            "ram.free": 9.03,
        }
    )
    assert found["ram.free"].step == pytest.approx(0.01 * GIB)


def test_btop_without_the_box_of_a_gpu_has_none_of_its_figures() -> None:
    assert not any(key.startswith("gpu") for key in parse_btop(BTOP.replace("vram", "cpu")))


def test_htop_has_used_and_size_from_its_bars() -> None:
    found = parse_htop("  Mem[||||#@$$76.8G/122G] Uptime\n  Swp[        0K/16.0G]")

    assert found["ram.used"].value == pytest.approx(76.8 * GIB)
    assert found["ram.size"] == Answer(122 * GIB, GIB)
    assert found["swap.used"].value == 0


def test_free_has_its_columns() -> None:
    text = (
        "               total  used  free  shared  buff/cache  available\nMem:  100 40 20 1 40 55\nSwap: 10 1 9\n"
    )

    found = parse_free(text)

    assert {key: one.value for key, one in found.items()} == {
        "ram.size": 100,
        "ram.used": 40,
        "ram.free": 20,
        "ram.available": 55,
        "swap.size": 10,
        "swap.used": 1,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("121 GiB", (121 * GIB, GIB)),
        ("63931MiB", (63931 * MIB, MIB)),
        ("13.5Gi", (13.5 * GIB, GIB / 10)),
        ("N/A", None),
    ],
)
def test_step_of_an_amount_is_that_of_its_last_digit(text: str, expected: tuple[float, float] | None) -> None:
    assert amount(text) == (expected and pytest.approx(expected))


def test_memwatchd_names_the_pool_of_a_share() -> None:
    metrics = (
        'memwatch_pool_size_bytes{device="",kind="system_ram",pool="ram"} 100\n'
        'memwatch_share_used_bytes{device="gpu0",kind="cuda_pool",share="cuda0",within="ram"} 60\n'
        'memwatch_pool_size_bytes{device="gpu1",kind="carveout",pool="gpu1"} 8\n'
    )
    snapshot = {
        "shares": [{"id": "cuda0", "device": "gpu0"}],
        "processes": [{"pid": 7, "device_bytes": {"cuda0": 50, "gpu1": "not_permitted"}}],
    }

    assert tools.parse_memwatchd(json.dumps([metrics, json.dumps(snapshot)])) == {
        "ram.size": Answer(100),
        "gpu0.used": Answer(60, within="ram"),
        "gpu1.size": Answer(8),
        "gpu1.carveout.size": Answer(8),
        "gpu0.process.7": Answer(50),
    }


def test_tools_have_one_name_each() -> None:
    names = [tool.name for tool in TOOLS]

    assert len(names) == len(set(names)) >= 8
