"""docs/reference/library.md, training.md: public names of memwatch and memwatch.training, from their docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from types import ModuleType
from typing import Any

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

import memwatch
from memwatch import training
from scripts.reference.capabilities import CAPABILITIES
from scripts.reference.markdown import block, code, codes, first_paragraph, page, prose, table

INTRO = """
`import memwatch` is for programs that use a GPU, and for scripts about them. It loads each name on first use. Tools
for training code are in [`memwatch.training`](training.md). The library
works without a daemon; with one it reads the daemon's figures, and sends it marks and allocator reports.
It looks for the daemon at `MEMWATCH_URL` (`http://HOST:6360`, or `unix:/PATH` of a socket that a container
shares), else at `/run/memwatchd/memwatchd.sock`, else at `http://127.0.0.1:6360`. [Training
code](../howto/training.md) has examples.

A device is what the framework in this program means by its name:

| name | device |
|---|---|
| `None`, `cpu` | System RAM |
| `cuda:0`, `torch.device("cuda", 0)` | PyTorch's, else by `CUDA_VISIBLE_DEVICES`, `CUDA_DEVICE_ORDER` |
| `cuda:0` on AMD, `hip:0` | by `ROCR_VISIBLE_DEVICES`, then `HIP_VISIBLE_DEVICES` or `CUDA_VISIBLE_DEVICES` |
| `xpu:0`, `mps` | by `ZE_AFFINITY_MASK`; Apple's GPU |
| 0, `"0"` | that number of CUDA, else of ROCm, XPU or Metal |
| `gpu0`, `GPU-5a3d8005`, `MIG-…`, `0000:1b:00.0` | that GPU or MIG instance of the machine, visible or not |

Inside a container with a daemon outside of it, its `/dev/nvidia` files decide which GPUs it has, else
`NVIDIA_VISIBLE_DEVICES`. With MIG, CUDA shows one instance to a process. The order of unlike GPUs is CUDA's own:
set `CUDA_DEVICE_ORDER=PCI_BUS_ID`, start PyTorch first, or name the GPU by its id. A device that does not exist
or is hidden raises `DeviceError`. In functions for a training step it is `None` and one line in the log.

Without a daemon the figures are the same and cost more. The first call that needs a GPU, and the first after a
minute without one, take up to two seconds; in between, a thread reads the machine once a second. NVIDIA's driver
is opened in a helper process, which ends a minute after the last call. If `MEMWATCH_URL` names another machine and
no daemon answers there, this machine is not read in its place: functions that return a reading raise
`NoDaemonError`, those for a training step log it once.
"""

TRAINING_INTRO = """
`memwatch.training` has tools for the code of a training run: its allocators, out-of-memory errors, callbacks of
frameworks, and weights. Nothing else in memwatch loads them. `import memwatch` is enough for
`memwatch.training.swap_blocks`, and each name is also one of `memwatch`, such as `memwatch.swap_blocks`. Names of
devices, and where a daemon is looked for: [library](library.md). Examples: [training code](../howto/training.md).
"""

# Public names of a page by subject, by the module that they come from.
SUBJECTS: dict[ModuleType, dict[str, tuple[str, ...]]] = {
    memwatch: {
        "The machine": (
            "machine",
            "machine_record",
            "daemon_client",
            "visible_gpus",
            "host",
            "memory_tree",
        ),
        "Measuring": ("stage_log", "track", "profiler"),
        "Limits and pressure": ("guard", "pressure_watch", "wait"),
        "Advice and backends": ("advice", "backend_selection"),
        "Planning": (
            "fit",
            "answer",
            "cuda_context",
            "inference",
            "training",
            "transformer",
            "checkpoint",
            "arguments",
        ),
    },
    training: {
        "Training frameworks": ("callbacks",),
        "Allocators": ("frameworks", "memory_pool", "memory_release", "pressure_watch", "allocation_tracker"),
        "Out-of-memory errors": ("oom_errors", "oom_recovery", "oom_autopsy"),
        "Weights": ("block_swap", "safetensors_file"),
        "Settings": ("presets",),
    },
}
Found = Callable[..., Any]


def list_names(module: ModuleType) -> list[str]:
    """Return the names that a page has: each name of `memwatch.training` is on that page only."""
    elsewhere = set(training.__all__) if module is memwatch else set()
    return [name for name in module.__all__ if not name.startswith("__") and name not in elsewhere]


def subject_of(module: ModuleType, found: object) -> str:
    """Return the heading under which a name stands. One that has none raises KeyError."""
    home = (inspect.getmodule(found) or memwatch).__name__.rpartition(".")[2]
    for subject, homes in SUBJECTS[module].items():
        if home in homes:
            return subject
    raise KeyError(f"{found!r} comes from {home}, which has no subject in {__name__}.SUBJECTS; add it to one")


def annotation(hint: object) -> str:
    """Return an annotation as it is written, without its documentation."""
    if isinstance(hint, str) and hint.startswith("Annotated["):
        hint = hint.removeprefix("Annotated[").rpartition(", Doc(")[0]
    text = hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    return text.replace("collections.abc.", "").replace("typing.", "")


def default_text(value: object) -> str:
    """Return a default as a reader would write it."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Struct):
        return f"{type(value).__name__}()"
    return getattr(value, "__name__", repr(value)) if callable(value) else repr(value)


def parameter_text(one: inspect.Parameter) -> str:
    """Return one parameter as a signature has it."""
    stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
    hint = "" if one.annotation is one.empty else f": {annotation(one.annotation)}"
    equals = " = " if hint else "="
    return f"{stars}{one.name}{hint}" + ("" if one.default is one.empty else f"{equals}{default_text(one.default)}")


def signature_text(name: str, function: Found) -> str:
    """Return a signature, one parameter a line where one line is too long. A class has no return type."""
    signature = inspect.signature(function)
    if inspect.isclass(function):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    parts: list[str] = []
    kinds = [one.kind for one in signature.parameters.values()]
    for one in signature.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and "*" not in parts and one.VAR_POSITIONAL not in kinds:
            parts.append("*")
        parts.append(parameter_text(one))
    returned = (
        "" if signature.return_annotation is signature.empty else f" -> {annotation(signature.return_annotation)}"
    )
    line = f"{name}({', '.join(parts)}){returned}"
    if len(line) <= 88:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"


def struct_fields(kind: type[Struct]) -> str:
    """Return the table of a record's fields."""
    hints = kind.__annotations__ if "__annotations__" in vars(kind) else {}
    rows = []
    for one in fields(kind):
        hint = hints.get(one.name, one.type)
        default = "" if one.default is NODEFAULT else code(default_text(one.default))
        rows.append((code(one.name), code(annotation(hint)), default))
    return table(("field", "type", "default"), rows)


def members(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield name, signature and first paragraph of public methods and properties."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property) and member.fget:
            returned = annotation(inspect.signature(member.fget).return_annotation)
            yield name, f"{name}: {returned}", first_paragraph(member.__doc__)
        elif inspect.isfunction(member):
            yield name, signature_text(name, member), first_paragraph(member.__doc__)


def class_part(name: str, kind: type) -> str:
    """Return the part of the page about a class."""
    parts = [f"### {name}", prose(first_paragraph(kind.__doc__))]
    if issubclass(kind, Struct):
        parts.append(struct_fields(kind))
    elif not issubclass(kind, BaseException) and not getattr(kind, "_is_protocol", False):
        parts.append(block(signature_text(name, kind)))
    rows = [(code(" ".join(text.split())), prose(meaning)) for _, text, meaning in members(kind)]
    parts.append(table(("member", "meaning"), rows))
    return "\n\n".join(part for part in parts if part)


def name_part(name: str) -> str:
    """Return the part of the page about one public name."""
    found = getattr(memwatch, name)
    if inspect.isclass(found):
        return class_part(name, found)
    return "\n\n".join([f"### {name}", block(signature_text(name, found)), prose(first_paragraph(found.__doc__))])


def capability_table(module: ModuleType) -> str:
    """Return the table of a page's tasks, each with its functions and its test."""
    names = set(list_names(module))
    found = [one for one in CAPABILITIES if names.intersection(one.names)]
    rows = [(one.task, codes(one.names), f"✓ {code(one.test[1])}") for one in found]
    return f"## By task\n\n{table(('task', 'function', 'test'), rows)}"


def render_page(module: ModuleType, title: str, intro: str) -> str:
    by_subject: dict[str, list[str]] = {subject: [f"## {subject}"] for subject in SUBJECTS[module]}
    for name in sorted(list_names(module), key=lambda name: (name[0].isupper(), name)):
        by_subject[subject_of(module, getattr(module, name))].append(name_part(name))
    return page(title, intro, capability_table(module), *("\n\n".join(parts) for parts in by_subject.values()))


def render() -> str:
    """Return the page about `memwatch`."""
    return render_page(memwatch, "Python library", INTRO)


def render_training() -> str:
    """Return the page about `memwatch.training`."""
    return render_page(training, "Tools for training code", TRAINING_INTRO)
