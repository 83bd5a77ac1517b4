"""Selection of a backend for several GPUs, for a size and for an answer of `memwatch.fit`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import memwatch
from memwatch.core.backends.model import Backend, BackendDevice, Backends
from memwatch.library.backend_selection import NoBackendError, select, select_for_answer
from memwatch.planning.answer import FitAnswer
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.fit import Fit, FitVerdict, Split
from memwatch.planning.need import MemoryNeed

GIB = 1 << 30


def gpu(name: str, room: int, unified: bool = False) -> BackendDevice:
    return BackendDevice(name, name, "gpu", room, room, room, unified)


def machine(*gpus: BackendDevice, backend: str = "cuda") -> Backends:
    cpu = BackendDevice(None, "CPU", "cpu", 64 * GIB, 64 * GIB, 64 * GIB, False)
    return Backends(
        backend,
        "",
        0.0,
        (Backend(backend, backend.upper(), True, "", gpus), Backend("cpu", "CPU", True, "", (cpu,))),
    )


def answer(best: str | None, *together: str) -> FitAnswer:
    split = Split(together, GIB, 0, "tensor parallel") if together else None
    cpu = FitVerdict("cpu", "System RAM", best == "cpu", 64 * GIB, 64 * GIB, 0, "")
    return FitAnswer(MemoryNeed("model", GIB, {}), Fit(GIB, best, (cpu,), split))


def test_size_is_divided_among_the_gpus_with_most_room() -> None:
    found = machine(gpu("gpu0", 10 * GIB), gpu("gpu1", 24 * GIB), gpu("gpu2", 20 * GIB))

    assert select(found, 40 * GIB, 2).name == "cuda"
    with pytest.raises(NoBackendError, match=r"no backend can allocate 21\.0 GiB on each of 2 GPUs now.*gpu2 can"):
        select(found, 42 * GIB, 2)
    with pytest.raises(NoBackendError, match="CUDA: it has 3 GPUs with memory of their own"):
        select(found, 4 * GIB, 4)


def test_gpus_of_one_memory_are_not_several() -> None:
    found = machine(gpu("gpu0", 90 * GIB, unified=True), gpu("gpu1", 90 * GIB, unified=True))

    with pytest.raises(NoBackendError, match="it has 0 GPUs with memory of their own"):
        select(found, 100 * GIB, 2)


def test_answer_on_several_gpus_selects_the_backend_that_has_them() -> None:
    found = machine(gpu("gpu0", 10 * GIB), gpu("gpu1", 10 * GIB))

    assert select_for_answer(found, answer(None, "gpu0", "gpu1")).name == "cuda"
    assert select_for_answer(found, answer("gpu1")).name == "cuda"
    with pytest.raises(NoBackendError, match="it has no gpu2"):
        select_for_answer(found, answer(None, "gpu1", "gpu2"))


def test_answer_for_the_cpu_selects_the_cpu() -> None:
    """Also where a GPU backend comes first."""
    assert select_for_answer(machine(gpu("gpu0", 10 * GIB)), answer("cpu")).name == "cpu"


def test_answer_that_also_fits_the_cpu_selects_it_without_a_gpu_backend() -> None:
    found, chosen = machine(gpu("gpu0", GIB)), answer("gpu0")
    (cpu,) = chosen.fit.verdicts
    both = replace(chosen, fit=replace(chosen.fit, verdicts=(replace(cpu, fits=True),)))
    bare = replace(found, backends=(replace(found.backends[0], available=False), found.backends[1]))

    assert select_for_answer(found, both).name == "cuda"
    assert select_for_answer(bare, both).name == "cpu"
    with pytest.raises(NoBackendError, match="no backend can allocate memory on gpu0 now"):
        select_for_answer(bare, chosen)


def test_answer_that_fits_nowhere_selects_nothing() -> None:
    with pytest.raises(NoBackendError, match="model does not fit now"):
        select_for_answer(machine(), answer(None))


def test_number_of_gpus_is_checked() -> None:
    with pytest.raises(InvalidInputError, match="gpus is 0, which is not a whole number from 1"):
        memwatch.select_backend_for("1GiB", gpus=0)


def three_backends() -> Backends:
    """CUDA with 10 GiB, OpenCL with 20 and the CPU with 64."""
    opencl = machine(gpu("gpu1", 20 * GIB), backend="opencl").backends[0]
    found = machine(gpu("gpu0", 10 * GIB))
    return replace(found, backends=(*found.backends, opencl))


@pytest.mark.parametrize(
    ("prefer", "need", "chosen"),
    [
        ((), GIB, "cuda"),
        (("cpu",), GIB, "cpu"),
        (("opencl", "cuda"), GIB, "opencl"),
        (("cuda",), 15 * GIB, "opencl"),
        (("rocm",), GIB, "cuda"),
    ],
)
def test_preferred_backend_comes_first_if_it_has_room(prefer: tuple[str, ...], need: int, chosen: str) -> None:
    assert select(three_backends(), need, prefer=prefer).name == chosen


def test_preferred_backend_that_is_passed_over_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "memwatch")

    select(three_backends(), 15 * GIB, prefer=("cuda",))

    assert caplog.messages == [
        "OPENCL is used, as the preferred backends cannot be: CUDA: gpu0 can allocate 10.0 GiB"
    ]
