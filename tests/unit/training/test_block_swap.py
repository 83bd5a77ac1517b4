"""Test block swapping: order of moves, what stays on the device, and when there is nothing to swap."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memwatch
from memwatch.planning.arguments import InvalidInputError
from memwatch.training import block_swap
from memwatch.training.block_swap import choose_direction, choose_window
from support.torch_blocks import Block, Gpu, Tensor, Torch

BLOCK_BYTES = 11
Start = Callable[..., Torch]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Return a function that puts the stand-in in the place of PyTorch."""

    def install(gpu: Gpu, **options: bool) -> Torch:
        torch = Torch(gpu, **options)
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(block_swap, "is_unified_memory_gpu", lambda _: False)
        return torch

    return install


def blocks_on(gpu: Gpu, count: int = 4, trained: bool = False) -> list[Block]:
    return [Block(gpu, f"b{number}", trained) for number in range(count)]


def run(blocks: list[Block]) -> None:
    for block in blocks:
        block.forward()


def moves(gpu: Gpu) -> list[str]:
    """Return computations and the loads of weights."""
    kept = [one for one in gpu.calls if ("start copy" in one and ".mean" not in one) or "ward" in one]
    return [one.replace("start copy ", "load ").replace(" to cuda", "") for one in kept]


def test_next_block_is_loaded_while_one_runs(start: Start) -> None:
    """And the last one is released before: never more than two are on the GPU."""
    gpu = Gpu()
    start(gpu)
    blocks = blocks_on(gpu)

    with memwatch.swap_blocks(blocks, resident=2) as swap:
        run(blocks)
        run(blocks)

    assert moves(gpu) == [
        "load b0",
        "load b1",
        *("forward b0", "load b2", "forward b1", "load b3", "forward b2", "load b0", "forward b3"),
        *("load b1", "forward b0", "load b2", "forward b1", "load b3", "forward b2", "load b0", "forward b3"),
    ]
    assert gpu.most == 2 * BLOCK_BYTES
    assert swap.is_active
    assert swap.swapped_bytes == 4 * BLOCK_BYTES


def test_copies_are_on_a_side_stream_and_computation_waits(start: Start) -> None:
    gpu = Gpu()
    start(gpu)
    blocks = blocks_on(gpu, 3)

    memwatch.swap_blocks(blocks, "cuda:0", resident=1)
    begun = len(gpu.calls)
    blocks[0].forward()

    assert gpu.calls[:6] == ["pin b0", "pin b0.mean", "pin b1", "pin b1.mean", "pin b2", "pin b2.mean"]
    assert gpu.calls[6:begun] == [
        "on side stream of cuda:0",
        "start copy b0 to cuda",
        "start copy b0.mean to cuda",
        "event",
    ]
    assert gpu.calls[begun:] == ["wait", "current stream uses b0", "current stream uses b0.mean", "forward b0"]


def test_device_without_streams_copies_in_order(start: Start) -> None:
    gpu = Gpu()
    start(gpu, has_streams=False)
    blocks = blocks_on(gpu)

    with memwatch.swap_blocks(blocks, resident=1):
        run(blocks)

    assert not any("pin" in one or "stream" in one or one in ("event", "wait") for one in gpu.calls)
    assert gpu.most == BLOCK_BYTES


def test_backward_pass_loads_in_reverse(start: Start) -> None:
    gpu = Gpu()
    torch = start(gpu)
    torch.grad = True
    blocks = blocks_on(gpu)

    with memwatch.swap_blocks(blocks, resident=2):
        run(blocks)
        gpu.calls.clear()
        for block in reversed(blocks):
            block.backward()

    assert moves(gpu) == ["backward b3", "load b1", "backward b2", "load b0", "backward b1", "backward b0"]
    assert gpu.most == 2 * BLOCK_BYTES


def test_trained_parameters_stay_on_the_device(start: Start) -> None:
    """Their gradients and the optimizer's state are there. Without gradients everything is swapped."""
    gpu = Gpu()
    torch = start(gpu)
    blocks = blocks_on(gpu, trained=True)

    with memwatch.swap_blocks(blocks, resident=1) as swap:
        run(blocks)
        without_gradients = swap.loaded_bytes
        torch.grad = True
        run(blocks)
        with_gradients = swap.loaded_bytes

    assert without_gradients == BLOCK_BYTES + 2
    assert with_gradients == BLOCK_BYTES + 4 * 2
    assert {tensor.data.place for block in blocks for tensor in block.tensors} == {"cpu"}


def test_changed_tensor_is_copied_back(start: Start) -> None:
    """A running mean, or a weight after a step. Others are not copied, as their copy is the same."""
    gpu = Gpu()
    start(gpu)
    blocks = blocks_on(gpu)

    with memwatch.swap_blocks(blocks, resident=1):
        blocks[0].forward()
        blocks[0].mean.change(7)
        blocks[1].forward()

        assert (blocks[0].mean.data.place, blocks[0].mean.data.content) == ("cpu", 7)
        assert [one for one in gpu.calls if one.startswith("copy ")] == ["copy b0.mean to cpu"]


def test_tensor_of_two_blocks_is_not_swapped(start: Start) -> None:
    gpu = Gpu()
    start(gpu)
    tied = Tensor(gpu, "tied", 5)
    blocks = [Block(gpu, f"b{number}", extra=(tied,) if number < 2 else ()) for number in range(4)]

    with memwatch.swap_blocks(blocks, resident=1) as swap:
        run(blocks)

        assert tied.data.place == "cuda"
        assert swap.swapped_bytes == 4 * BLOCK_BYTES


def test_failed_start_leaves_the_blocks_as_they_were(start: Start) -> None:
    gpu = Gpu(room=BLOCK_BYTES + 10)
    start(gpu)
    blocks = blocks_on(gpu)

    with pytest.raises(RuntimeError, match="out of memory"):
        memwatch.swap_blocks(blocks, resident=2)

    assert [len(block.forward_hooks) for block in blocks] == [0] * 4
    assert {block.weight.data.place for block in blocks} == {"cpu"}


def test_prefetch_out_of_memory_does_not_fail_a_step(start: Start) -> None:
    gpu = Gpu(room=2 * BLOCK_BYTES)
    start(gpu)
    blocks = blocks_on(gpu)

    with memwatch.swap_blocks(blocks, resident=2):
        gpu.room = BLOCK_BYTES + 10  # another program took the rest
        run(blocks)
        run(blocks)

    assert [one for one in moves(gpu) if one.startswith("forward")] == [f"forward b{n}" for n in (0, 1, 2, 3)] * 2


def test_removed_hooks_leave_the_blocks_in_system_ram(start: Start) -> None:
    gpu = Gpu()
    start(gpu)
    blocks = blocks_on(gpu)

    swap = memwatch.swap_blocks(blocks, resident=3)
    swap.remove()

    assert [len(block.forward_hooks) + len(block.backward_hooks) for block in blocks] == [0] * 4
    assert (gpu.used, swap.loaded_bytes) == (0, 0)


@pytest.mark.parametrize(("unified", "resident"), [(True, 1), (False, 4)], ids=["unified memory", "all resident"])
def test_nothing_is_swapped_where_that_frees_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, unified: bool, resident: int
) -> None:
    """All blocks are on the device, without hooks, and `note` says why."""
    gpu = Gpu()
    start(gpu)
    monkeypatch.setattr(block_swap, "is_unified_memory_gpu", lambda _device: unified)
    blocks = blocks_on(gpu)

    swap = memwatch.swap_blocks(blocks, "cuda:0", resident)
    run(blocks)

    assert not swap.is_active
    assert swap.note == (
        "cuda:0 allocates from System RAM: swapping blocks would free nothing, so all 4 are on it"
        if unified
        else "all 4 blocks are resident, so none is swapped"
    )
    assert [len(block.forward_hooks) for block in blocks] == [0] * 4
    assert gpu.used == 4 * BLOCK_BYTES


def test_no_blocks_are_refused(start: Start) -> None:
    start(Gpu())

    with pytest.raises(InvalidInputError, match="blocks is empty"):
        memwatch.swap_blocks([])
    with pytest.raises(InvalidInputError, match="resident is 0"):
        memwatch.swap_blocks([object()], resident=0)


@given(st.integers(1, 12), st.integers(1, 15), st.sampled_from([1, -1]), st.booleans(), st.data())
def test_window_has_the_block_first_and_never_more_than_resident(
    count: int, resident: int, step: int, wraps: bool, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, count - 1))

    found = choose_window(index, count, resident, step, wraps=wraps)

    assert found[0] == index
    assert len(found) == len(set(found)) == min(resident, count)
    assert set(found) <= set(range(count))


@pytest.mark.parametrize(
    ("last", "index", "step"),
    [(None, 0, 1), (0, 1, 1), (3, 0, 1), (3, 3, -1), (3, 2, -1), (1, 0, -1), (2, 2, 1)],
)
def test_direction_follows_the_order_of_blocks(last: int | None, index: int, step: int) -> None:
    """With activation checkpoints the last block runs twice, and then those before it."""
    assert choose_direction(last, index, 4) == step


def test_blocks_that_are_swapped_already_are_refused_until_they_are_removed(start: Start) -> None:
    """Two of them would move the same tensors."""
    gpu = Gpu()
    start(gpu)
    blocks = blocks_on(gpu)

    with (
        memwatch.swap_blocks(blocks),
        pytest.raises(InvalidInputError, match=r"blocks\[0\] is swapped already; call"),
    ):
        memwatch.swap_blocks(blocks[1:])
    with memwatch.swap_blocks(blocks[1:]) as swap:
        run(blocks[1:])
    assert swap.loads


def test_device_that_pytorch_refuses_is_named(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu()
    torch = start(gpu)

    def refuse(name: str) -> None:
        raise RuntimeError(f"Invalid device string: '{name}'\nException raised from parse_type")

    monkeypatch.setattr(torch, "device", refuse)
    with pytest.raises(InvalidInputError, match="device is \"gpuX\": Invalid device string: 'gpuX'; for example"):
        memwatch.swap_blocks(blocks_on(gpu), "gpuX")
