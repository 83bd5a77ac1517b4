"""Models that servers have loaded: sizes of the weights, and of the cache whose capacity the server reports.

The files of a model are read once, by a short-lived child process with the rights of the server that serves it.
Where memwatchd is root, the child becomes the user of the server, for good. Where it is not, it refuses what the
server itself might not read (see memwatch.core.linux.user_files).
"""

from __future__ import annotations

import math
import os
import re
import resource
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec import MsgspecError, Struct, json
from msgspec.structs import replace

from memwatch.core.engines.records import MAX_BYTES, Cache, ModelQuery, ModelSizes, ServedBy
from memwatch.core.helper.bootstrap import bootstrap, die_with_parent, offer_to_oom_killer, write_all
from memwatch.core.linux.cgroups import parse_mountinfo
from memwatch.core.linux.files import ParseError, read_once
from memwatch.core.linux.process_files import (
    STAT_BYTES,
    STATUS_BYTES,
    Credentials,
    parse_credentials,
    parse_effective,
    parse_stat,
    read_at,
)
from memwatch.core.linux.user_files import UserFiles
from memwatch.core.model import Absent, Bytes, Quality
from memwatch.core.printable import printable
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import Checkpoint, read_checkpoint, read_gguf
from memwatch.planning.inference import compute_cached_numbers, compute_kv_cache, compute_weights, layers_of_group
from memwatch.planning.model_file import ModelPath, find_home, find_model
from memwatch.planning.number_formats import bits_per_cached_number
from memwatch.planning.transformer import Transformer

CHILD = "memwatch.planning.served"
# Headers of the 200 files of a large model on a network drive take 2 s. The child takes 0.2 s of CPU to start.
DEADLINE_SECONDS = 5.0
# The child may get the rights of another user, so it gets nothing else of the daemon's environment.
KEPT = ("LANG", "LD_LIBRARY_PATH", "PATH")
FAILED = "The files of its model could not be read: {error}."
MAX_KNOWN = 64
# An index of 90,000 tensors and a header of 50,000 take 150 MiB to parse.
MAX_MEMORY_BYTES = 512 << 20
MAX_CPU_SECONDS = 5
NOT_READABLE = "The files of its model ({name}) are not readable here."
# Options in a YAML file (vLLM and SGLang: --config, TensorRT-LLM: --extra_llm_api_options), by the names of the
# command line with - for _. Such a file may have API keys: only these are read.
WANTED = frozenset({
    "model", "model-path", "port", "quantization", "tensor-parallel-size", "pipeline-parallel-size",
    "enable-expert-parallel", "enable-attention-dp", "gpu-memory-utilization",
})  # fmt: skip
MAX_OPTIONS_BYTES = 64 << 10
# The kernel allows an environment of a quarter of the stack's limit, which is 2 MiB. It has secrets: only the
# wanted variables leave this child, and no more of them than a path has.
MAX_ENVIRONMENT_BYTES, MAX_VARIABLE_BYTES = 4 << 20, 1024
NO_ENVIRONMENT = "Its environment is not readable here."
_LINE = re.compile(r"([A-Za-z][\w-]{0,60}):[ \t]+(\S.{0,400})")
_COMMENT = re.compile(r"[ \t]#.*$")
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off", "null", "~")
# Ollama stores a GGUF file under its digest.
BLOB = "sha256-"
# A windowed layer of llama.cpp has room for one step beside its window (`--ubatch-size`).
STEP_TOKENS = 512
# Any user may write such files.
TOO_LARGE = "The files of its model and its report lead to more bytes than any machine has."


class ServedModel(Struct, frozen=True):
    """A model by its files. `note`: why its shape is not known, a clause. `failure`: why nothing is, a sentence."""

    weights_bytes: Bytes = Absent.NOT_AVAILABLE
    shape: Transformer | None = None
    note: str = ""
    failure: str = ""
    options: tuple[str, ...] = ()
    number_bytes: float = 0.0


class ServedModels:
    """Sizes of models. The files of one that a process serves are read once: it loaded them when it started."""

    def __init__(self) -> None:
        self._known: dict[ModelQuery, ServedModel] = {}

    def size(self, query: ModelQuery) -> ModelSizes:
        """Return the sizes of a model. Those that do not follow from its files are absent, with a note."""
        key = replace(query, cache=None)
        model = self._known.pop(key, None) or read_served_model(query)
        if not model.failure:
            self._known[key] = model
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return size_served(model, query.cache)


def read_served_model(query: ModelQuery) -> ServedModel:
    # The child does not need them, nor logging and subprocess, which they import.
    from memwatch.core.helper.process import python_child
    from memwatch.core.helper.supervisor import Helper, HelperError

    environ = {name: os.environ[name] for name in KEPT if name in os.environ}
    helper = Helper(python_child(CHILD), DEADLINE_SECONDS, pause_seconds=0.0, environ=environ)
    try:
        return json.decode(helper.ask(json.encode(query)), type=ServedModel)
    except (HelperError, MsgspecError) as error:
        return ServedModel(failure=FAILED.format(error=error))
    finally:
        helper.stop()


def main() -> int:
    answers = bootstrap()
    offer_to_oom_killer()
    query = json.decode(sys.stdin.buffer.readline(), type=ModelQuery)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    write_all(answers, json.encode(read_model(query)) + b"\n")
    return 0


def read_model(query: ModelQuery) -> ServedModel:
    """Return the model. One that may not be read has the failure of one that does not exist."""
    text = NO_ENVIRONMENT if query.variables else NOT_READABLE.format(name=query.name[:120])
    missing = ServedModel(failure=text)
    try:
        return _read(query, missing)
    except (OSError, ParseError, MemoryError):
        return missing


def _read(query: ModelQuery, missing: ServedModel) -> ServedModel:
    """Raises OSError and ParseError if the process has ended, or hides what it is."""
    by = query.by
    if by is None:
        return missing
    process = os.open(Path(by.procfs, str(by.pid)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    root = open_root(process, by)
    rights = parse_credentials(read_at(process, "status", STATUS_BYTES) or b"")
    cwd = find_cwd(process)
    stat = parse_stat(read_at(process, "stat", STAT_BYTES) or b"")
    if stat is None or stat.start_ticks != by.start_ticks:
        return missing
    files = UserFiles(root, take_rights(rights))
    if query.variables:
        found = read_variables(process, query.variables)
        return missing if found is None else ServedModel(options=found)
    if query.is_options:
        return read_options(files, query.name, cwd) or missing
    path = find_model(query.name, files, find_home(files, rights.uid), cwd)
    return read_served(path) if path else missing


def read_variables(process: int, names: Collection[str]) -> tuple[str, ...] | None:
    """Return these variables of a process as NAME=VALUE, None if the kernel refuses its environment to this user.

    It is the one that the process started with.
    """
    try:
        opened = os.open("environ", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
        with os.fdopen(opened, "rb") as file:
            data = file.read(MAX_ENVIRONMENT_BYTES + 1)
    except OSError:
        return None
    if len(data) > MAX_ENVIRONMENT_BYTES:
        return None
    wanted = {name.encode() for name in names}
    found = (one for one in data.split(b"\0") if one.partition(b"=")[0] in wanted)
    return tuple(printable(one[:MAX_VARIABLE_BYTES].decode("ascii", "replace")) for one in found)


def read_options(files: UserFiles, name: str, cwd: str) -> ServedModel | None:
    """Return the options in a file that the command line of a server names, None if the server may not read it."""
    if not name or "\0" in name or not (cwd or name.startswith("/")):
        return None
    data = files.path(os.path.join(cwd, name)).read(MAX_OPTIONS_BYTES)
    return None if data is None else ServedModel(options=parse_options(data))


def open_root(process: int, by: ServedBy) -> int:
    """Return the root folder of a process. Raises FileNotFoundError if it cannot be entered.

    A folder that may not be entered is ours if both processes have the same file system there.
    """
    try:
        return os.open("root/.", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
    except OSError:
        pass
    theirs = find_root(read_once(Path(by.procfs, str(by.pid), "mountinfo")))
    if theirs is None or theirs != find_root(read_once(Path(by.procfs, "self/mountinfo"))):
        raise FileNotFoundError
    return os.open(by.rootfs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def find_root(mountinfo: bytes | None) -> tuple[str, str] | None:
    """Return the device and the folder that are mounted at `/`, None if the kernel does not tell."""
    mounts = reversed(parse_mountinfo(mountinfo or b""))
    return next(((one.device, one.root) for one in mounts if one.point == "/"), None)


def find_cwd(process: int) -> str:
    try:
        return os.readlink("cwd", dir_fd=process)
    except OSError:
        return ""


def take_rights(rights: Credentials) -> int | None:
    """Become the user of the server, if this process is root.

    Return the user whose rights are to be checked file by file, None if this process has no more rights than the
    server.
    """
    if os.geteuid() == 0:
        os.setgroups(rights.groups)
        os.setresgid(rights.gid, rights.gid, rights.gid)
        os.setresuid(rights.uid, rights.uid, rights.uid)
        die_with_parent()  # a change of the user ends that (prctl(2))
    same = set(os.getresuid()) == {rights.uid} and set(os.getresgid()) == {rights.gid}
    if os.geteuid() == rights.uid and same and not _exceeds(rights):
        return None
    return rights.uid


def _exceeds(rights: Credentials) -> bool:
    """Return True if this process has a capability or a group that the server has not."""
    capabilities = parse_effective(read_once(Path("/proc/self/status")) or b"")
    return bool(capabilities & ~rights.capabilities) or not set(os.getgroups()) <= {rights.gid, *rights.groups}


def read_served(path: ModelPath) -> ServedModel:
    """Read a model's files."""
    try:
        checkpoint = read_gguf([path]) if path.name.startswith(BLOB) else read_checkpoint(path)
        is_known = checkpoint.transformer is not None and not checkpoint.problem
        number_bytes = checkpoint.dtype_bytes if is_known else 0.0
        weights = size_weights(checkpoint)
        return ServedModel(weights, checkpoint.transformer, checkpoint.note, number_bytes=number_bytes)
    except (InvalidInputError, OSError) as error:
        return ServedModel(failure=str(error))


def parse_options(data: bytes) -> tuple[str, ...]:
    """Return the arguments that mean the same as a file of options; the last value of an option counts.

    Only lines such as `tensor-parallel-size: 2` at the left edge are read. Lists, objects and anything else of YAML
    are left out.
    """
    found: list[str] = []
    for line in data[:MAX_OPTIONS_BYTES].decode("utf-8", "replace").splitlines():
        if (pair := _LINE.fullmatch(line.rstrip())) and (name := pair[1].replace("_", "-")) in WANTED:
            found += _arguments(name, _COMMENT.sub("", pair[2]).strip())
    return tuple(found)


def _arguments(name: str, value: str) -> Iterator[str]:
    if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1:
        value = value[1:-1]
    elif value.lower() in _FALSE or value[:1] in "[{|>&*!%@`#":
        return
    yield f"--{name}"
    if value.lower() not in _TRUE:
        yield value


def size_served(model: ServedModel, cache: Cache | None) -> ModelSizes:
    """Return the sizes of a model. Those that do not follow from its files are absent, with a note."""
    if model.failure:
        return ModelSizes(note=model.failure)
    if model.options:
        return ModelSizes(options=model.options)
    try:
        found = size_cache(model, cache)
    except InvalidInputError as error:
        found = ModelSizes(model.weights_bytes, note=str(error))
    if any(isinstance(one, int) and one > MAX_BYTES for one in (found.weights_bytes, found.kv_cache_bytes)):
        return ModelSizes(Absent.INCONSISTENT, Absent.INCONSISTENT, note=TOO_LARGE)
    return replace(found, number_bytes=model.number_bytes)


def size_weights(checkpoint: Checkpoint) -> Bytes:
    if checkpoint.weights_bytes is not None:
        return checkpoint.weights_bytes
    if checkpoint.transformer is None or checkpoint.problem:
        return Absent.NOT_AVAILABLE
    return compute_weights(checkpoint.transformer, checkpoint.dtype_bytes, checkpoint.scope)


def size_cache(model: ServedModel, cache: Cache | None) -> ModelSizes:
    shape, weights = model.shape, model.weights_bytes
    if cache is None:
        return ModelSizes(weights)
    if cache.replicas > 1:
        if isinstance(weights, int):
            weights *= cache.replicas
        if cache.splits_experts:
            weights = Absent.NOT_AVAILABLE
    if shape is None:
        return ModelSizes(weights, note=f"The model's shape is not known: {model.note or 'no config.json'}.")
    if shape.linear_layers:
        return ModelSizes(weights, note="Layers that keep a state have pages of a size of their own.")
    shape = replace(shape, sliding_window=0) if cache.ignores_windows else shape
    quality = Quality.ESTIMATED if shape.sliding_window or cache.is_assumed else Quality.DERIVED
    found = _block_bytes(shape, cache) if cache.layout == "blocks" else _cell_bytes(shape, cache)
    return ModelSizes(weights, found, quality)


def _block_bytes(shape: Transformer, cache: Cache) -> int:
    """Return the bytes of all blocks. Each GPU has as many, with its part of the KV heads.

    Heads that are fewer than the GPUs are copied, and so is the one latent vector of MLA.
    """
    heads = 1 if shape.kv_lora_rank else shape.n_kv_heads
    copies = max(1.0, cache.parallel / heads)
    tokens = cache.blocks * cache.block_tokens
    numbers = tokens * layers_of_group(shape) * shape.cached_numbers
    each = compute_cached_numbers(shape, numbers, _number_bytes(cache)) + tokens * shape.side_bytes
    return math.ceil(each * copies)


def _cell_bytes(shape: Transformer, cache: Cache) -> int:
    if shape.sliding_window:
        shape = replace(shape, sliding_window=shape.sliding_window + STEP_TOKENS)
    return compute_kv_cache(shape, cache.tokens, cache.sequences, _number_bytes(cache))


def _number_bytes(cache: Cache) -> float:
    """Return the mean bytes of a number: keys and values may have different formats."""
    return (_format_bytes(cache.key_dtype) + _format_bytes(cache.value_dtype)) / 2


def _format_bytes(dtype: str) -> float:
    return 2.0 if dtype == "auto" else bits_per_cached_number(dtype) / 8
