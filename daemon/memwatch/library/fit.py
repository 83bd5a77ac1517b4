"""Check that a model or a size fits on this machine now, with the code of `memwatch fit` and /api/v1/fit."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from memwatch.core.backends.cuda_context import measure_context
from memwatch.core.snapshot import Snapshot
from memwatch.library.daemon_client import daemon
from memwatch.library.device_selection import hidden_devices
from memwatch.library.host import as_used_here
from memwatch.library.machine_record import ROOTS, is_this_machine
from memwatch.library.program_safety import log_once
from memwatch.library.visible_gpus import Program
from memwatch.planning.answer import FitAnswer, answer_model, answer_size
from memwatch.planning.arguments import check_flag, check_kind, check_path, parse_bytes, refuse
from memwatch.planning.checkpoint import Checkpoint, read_checkpoint_as_owner
from memwatch.planning.engines import select_engines
from memwatch.planning.model_names import read_subject
from memwatch.planning.need import is_size, parse_need
from memwatch.planning.parameters import list_parameters
from memwatch.planning.request import Use, refuse_for_size
from memwatch.planning.training import TrainingPlan

# A use without options, whose defaults are those of `fit`.
PLAIN = Use()


def fit(
    model: str | int | Path | Checkpoint,
    *,
    context: int = PLAIN.context,
    batch: int = PLAIN.batch_size,
    dtype: str = PLAIN.dtype,
    kv_dtype: str = PLAIN.kv_dtype,
    training: TrainingPlan | None = PLAIN.training,
    offload_kv: bool = PLAIN.offload_kv,
    cpu_layers: int = PLAIN.cpu_layers,
    gpus: int = PLAIN.gpus,
    parallel: Literal["", "tensor", "pipeline"] = PLAIN.parallel,
    zero: int = PLAIN.zero,
    reserve: str | int = PLAIN.reserve_bytes,
    measure: bool = False,
    launch: str = "",
    online: bool = False,
) -> FitAnswer:
    """Return where a model or a size fits now: on one GPU, on several, or on the CPU. Raises InvalidInputError.

    `model`: a size such as "20GiB", a path, a name as `memwatch fit` takes it ("Qwen/Qwen3-8B", "ollama:qwen3"), or
    what `read_checkpoint` returned. `online`: ask the hub for a name that is not here. `context` 0: the
    model's own, at most 8,192 tokens. `gpus` 0: as few as possible. `parallel`: tensor or pipeline. `measure`:
    opens a GPU context in another process for its cost, and raises ContextNotMeasuredError. `launch`: an engine for
    its launch line, or all. For a size, `reserve` is the only option. The CPU has System RAM within the limit of
    this process's container, unit or job. Without a daemon, reads the machine, which takes up to two seconds.
    Raises NoDaemonError as `machine`.
    """
    if not isinstance(model, str | int | os.PathLike | Checkpoint):
        raise refuse(model, "model", "a size, a path or a Checkpoint", '"20GiB"')
    if training is not None:
        check_kind(training, "training", TrainingPlan, "TrainingPlan()")
    left = parse_bytes(reserve, "reserve") if reserve else 0
    use = Use(
        context=context,
        batch_size=batch,
        dtype=dtype,
        kv_dtype=kv_dtype,
        training=training,
        offload_kv=offload_kv,
        cpu_layers=cpu_layers,
        gpus=gpus,
        parallel=parallel,
        zero=zero,
        reserve_bytes=left,
    )
    engines = select_engines(launch)
    check_flag(measure, "measure", example=True)
    check_flag(online, "online", example=True)
    if isinstance(model, int) or (isinstance(model, str) and is_size(model)):
        need = parse_need(model)
        others = {"measure": measure, "launch": launch, "online": online}
        given = [*list_changes(use), *(name for name, value in others.items() if value)]
        remedy = 'leave that out, or name a model, for example fit("models/qwen3-8b", context=8192)'
        refuse_for_size(str(model), given, remedy)
        return answer_size(need, str(model), read_snapshot(), left)
    if measure:
        use = replace(use, runtime_bytes=measure_context().bytes)
    return answer_model(_checkpoint(model, online), use, read_snapshot(), engines, _name(model))


def _name(model: str | Path | Checkpoint) -> str:
    return model.name if isinstance(model, Checkpoint) else os.fspath(model)


def list_changes(use: Use) -> list[str]:
    """Return the options of `fit` that differ from their default and apply to models only."""
    plain = replace(PLAIN, reserve_bytes=use.reserve_bytes)
    return [
        one.attribute if one.record else one.name  # the switch `train` is here a plan
        for one in list_parameters(Use)
        if getattr(use, one.attribute) != getattr(plain, one.attribute)
    ]


def _checkpoint(model: str | Path | Checkpoint, online: bool) -> Checkpoint:
    if isinstance(model, Checkpoint):
        return model
    if isinstance(model, os.PathLike):
        return read_checkpoint_as_owner(check_path(model, "model", "models/qwen3-8b"))
    return read_subject(model, online)


def read_snapshot() -> Snapshot:
    """Return the daemon's current snapshot, or one of this machine, as this program can use it.

    It is within the limit of this process's container, unit or job, and without hidden GPUs.
    """
    found = _read_daemon()
    if found is None:
        daemon.require_here()
        from memwatch.library.local_reading import read_machine

        return _without_hidden(as_used_here(read_machine()), is_read_outside=False)
    here = as_used_here(found) if is_this_machine(found.boot_id) else found
    return _without_hidden(here, is_read_outside=True)


def _without_hidden(found: Snapshot, is_read_outside: bool) -> Snapshot:
    hidden = hidden_devices(found.devices, Program(os.environ, sys.modules, ROOTS, is_read_outside))
    return replace(found, devices=tuple(one for one in found.devices if one.id not in hidden)) if hidden else found


def _read_daemon() -> Snapshot | None:
    found = daemon.get("/api/v1/snapshot")
    if found is None:
        return None
    from memwatch.core.snapshot_json import SnapshotDecodeError, build_snapshot

    try:
        return build_snapshot(found)
    except SnapshotDecodeError as error:
        log_once(f"the response of {daemon.url} cannot be decoded: {error}")
        return None
