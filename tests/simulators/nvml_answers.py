"""Answers of the simulated NVIDIA driver as plain numbers, and the reading that NVML's helper makes of them.

This is the layer just above the C library: it needs no process, and no library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from memwatch.core.drivers.nvml.records import GpuInstance, GpuMemory, GpuReading, NvmlReading
from memwatch.core.drivers.nvml.validation import (
    NO_INSTANCE,
    NVML_VALUE_NOT_AVAILABLE,
    AnswerValidator,
    Limits,
    Row,
    capacity_of_instances,
    join_lists,
    process_capacity,
)
from memwatch.core.model import Absent
from simulators.nvml_state import Gpu, Holder, Machine, Memory
from support.answer_corruption import GONE, put, walk

Json = Any
NO = Absent.NOT_SUPPORTED
ADDRESSING = ("none", "hmm", "ats")
BITS = {"pid": 32, "instance": 32, "numa_node": 31}


def answers_of(machine: Machine) -> Json:
    """Return what the driver answers about memory, by GPU."""
    return {"gpus": [_answers(gpu) for gpu in machine.gpus]}


def _answers(gpu: Gpu) -> Json:
    mig = gpu.mig if gpu.mig and gpu.mig.current else None
    return {
        "uuid": gpu.uuid,
        "pci": gpu.bus_id[4:].lower(),
        "name": gpu.name if isinstance(gpu.name, str) else "NVIDIA GPU",
        "memory": _memory(gpu.memory),
        "memory_v1": _memory(gpu.memory_v1),
        "bar1": gpu.bar1.total if gpu.bar1 else None,
        "numa_node": gpu.numa_node,
        "addressing": gpu.addressing_mode,
        "compute": _rows(gpu.compute),
        "graphics": _rows(gpu.graphics),
        "instances": [
            {"id": number, "memory": _memory(one.memory)} for number, one in (mig.instances if mig else {}).items()
        ],
    }


def _memory(memory: Memory | None) -> Json:
    return None if memory is None else memory.facts()


def _rows(holders: Iterable[Holder] | None) -> Json:
    return None if holders is None else [{"pid": one.pid, "used": one.used, "instance": one.gi} for one in holders]


def corrupt_answers(answers: Json) -> Iterator[tuple[str, str, Json]]:
    """Yield the answers with each number corrupted in each way that the C interface allows."""
    for steps, value in walk(answers, ()):
        name = ".".join(step for step in steps if isinstance(step, str))
        if type(value) is int:
            most = (1 << BITS.get(str(steps[-1]), 64)) - 1
            ways = {"zero": 0, "doubled": min(most, 2 * value), "wrapped": most - value, "all bits": most}
            yield from ((name, how, put(answers, steps, changed)) for how, changed in ways.items())
            if len(steps) == 3:
                yield name, "missing", put(answers, steps, None)
        elif isinstance(value, dict) and steps[-1] in ("memory", "memory_v1"):
            yield name, "missing", put(answers, steps, None)
        elif isinstance(steps[-1], int) and len(steps) > 2:
            yield name, "missing", put(answers, steps, GONE)
            yield name, "repeated", put(answers, steps[:-1], [value], insert=True)


def reading_of(answers: Json, system_bytes: int | None) -> NvmlReading:
    """Return the reading of these answers, as the helper makes it."""
    validator = AnswerValidator(Limits(1 << 22, system_bytes))
    gpus = tuple(_read_gpu(number, gpu, validator) for number, gpu in enumerate(answers["gpus"]))
    return NvmlReading("580.126.09", "13.0", gpus, rejected=validator.rejected)


def _read_gpu(number: int, gpu: Json, validator: AnswerValidator) -> GpuReading:
    memory = validator.memory(_read_memory(gpu))
    bar1 = NO if gpu["bar1"] is None else gpu["bar1"]
    instances = tuple(
        GpuInstance(one["id"], (f"MIG-{one['id']}",), validator.memory(_read_memory(one)))
        for one in gpu["instances"]
    )
    capacity = process_capacity(memory, bar1, validator.limits)
    if instances:
        capacity = capacity or capacity_of_instances(instances)
    addressing = gpu["addressing"]
    return GpuReading(
        number,
        gpu["uuid"],
        gpu["pci"],
        gpu["name"],
        memory=memory,
        bar1_bytes=bar1,
        numa_node=NO if gpu["numa_node"] is None else gpu["numa_node"],
        addressing_mode=ADDRESSING[addressing] if addressing in range(len(ADDRESSING)) else NO,  # type: ignore[arg-type]
        mig_enabled=bool(instances),
        instances=instances,
        processes=validator.processes(
            join_lists([_read_rows(gpu["compute"]), _read_rows(gpu["graphics"])]), capacity
        ),
    )


def _read_memory(one: Json) -> GpuMemory | Absent:
    """Return the second version of the answer, or the first, as the helper does."""
    if found := one["memory"]:
        return GpuMemory(2, found["total"], found["used"], found["free"], found["reserved"])
    if found := one.get("memory_v1"):
        return GpuMemory(1, found["total"], found["used"] + found["reserved"], found["free"], NO)
    return NO


def _read_rows(rows: Json) -> list[Row] | Absent:
    if rows is None:
        return NO
    return [
        (
            row["pid"],
            NVML_VALUE_NOT_AVAILABLE if row["used"] is None else row["used"],
            NO_INSTANCE if row["instance"] is None else row["instance"],
        )
        for row in rows
    ]
