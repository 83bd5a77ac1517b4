"""A model on disk: a safetensors or GGUF file, an index of shards, a config.json, or their folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.linux.user_files import as_owner
from memwatch.core.listing import some_of
from memwatch.core.printable import describe_error
from memwatch.core.runtime.own_files import remedy_to_read
from memwatch.planning import diffusion, gguf, safetensors
from memwatch.planning.arguments import InvalidInputError, UnknownModelError, check_path
from memwatch.planning.config_keys import UnknownFamilyError
from memwatch.planning.diffusion import Pipeline
from memwatch.planning.huggingface import Config, parse_config
from memwatch.planning.inference import compute_weights
from memwatch.planning.model_file import ModelPath, list_files, read_small
from memwatch.planning.number_formats import FILE_TYPES, OTHER_FILE, Scope, parse_format
from memwatch.planning.transformer import Transformer

INDEX, CONFIG = "model.safetensors.index.json", "config.json"
# An index of 90,000 tensors has 9 MB.
MAX_INDEX_BYTES = 16 << 20
MAX_SHARDS = 4096
PART = re.compile(r"(.+)-[0-9]{5}-of-([0-9]{5})(\.gguf|\.safetensors)")
# Files with less than this part of what the shape needs are not all of a model: an adapter, a vision tower, a shard
# under another name. Quantizations that a config.json does not describe take more.
MIN_WEIGHTS_RATIO = 0.2
# The same where the number of parameters is known: of a GGUF file, or of floats of two bytes.
MIN_PARAMETERS_RATIO = 0.8
NAMED_FILES = 2
NAMED_VARIANTS = 4
# In the names of files with a vision tower (llama.cpp, LM Studio).
PROJECTOR = "mmproj"
# Statistics for llama-quantize, which are no model.
STATISTICS = re.compile(r"(^|[-_./])imatrix[^/]*\.gguf$", re.IGNORECASE)
# A publisher's own mix of formats, beside the plain one: UD-Q4_K_XL (Unsloth).
OWN_MIX = "UD-"


class Checkpoint(Struct, frozen=True):
    """A model's size and shape. `weights_bytes`: size of its tensors, None if only its config.json is known.

    `source`: the format that was read. `note`: why the shape is not known, a clause. `dtype_bytes`: bytes per
    weight of the parts in `scope`. `problem`: why its config.json does not give these, empty if it does. `unknown`:
    what the shape and the files lack, sentences: caches that are not known, files that are missing.
    `pipeline`: the components of a diffusion model, in place of a transformer. `origin`: a sentence about files
    that are not on this machine, empty if all are. `alias`: its name in the store of Ollama.
    `projector`: the file of its vision tower, if that is one beside a GGUF file. `file_format`: of a GGUF file, in
    the words of FILE_TYPES, or OTHER_FILE; empty for no such file.
    """

    name: str
    source: str
    transformer: Transformer | None
    weights_bytes: int | None
    context: int
    dtype_bytes: float
    note: str = ""
    scope: Scope = "layers"
    problem: str = ""
    unknown: str = ""
    pipeline: Pipeline | None = None
    origin: str = ""
    alias: str = ""
    projector: str = ""
    file_format: str = ""

    @property
    def why_shapeless(self) -> str:
        """A clause about all that a model without a shape lacks, empty if its files do not tell."""
        return "; ".join(one for one in (self.note, self.unknown.rstrip(".")) if one)


def read_checkpoint(path: str | ModelPath) -> Checkpoint:
    """Read the size and shape of the model at a path.

    Raises UnknownModelError if it is missing, damaged or of an unknown format, and InvalidInputError for what is no
    path.
    """
    if isinstance(path, str) or not hasattr(path, "is_dir"):
        path = check_path(path, "path", "models/qwen3-8b")
    with reading(path):
        if path.is_dir():
            return _read_folder(path)
        if path.name == diffusion.MODEL_INDEX:
            return _read_pipeline(path.parent)
        if path.name == CONFIG:
            return build_checkpoint(path, _config(path), None, CONFIG)
        if path.name.endswith(".index.json"):
            return _read_index(path)
        return _read_file(path)


@contextmanager
def reading(name: object) -> Iterator[None]:
    """Raise UnknownModelError for each error of reading a model of this name."""
    try:
        yield
    except UnknownModelError:
        raise
    except InvalidInputError as error:
        raise UnknownModelError(str(error)) from None
    except OSError as error:
        why = describe_error(error)
        raise UnknownModelError(f"{name}: cannot be read ({why}); {remedy_to_read(error)}") from None
    except RecursionError:
        raise UnknownModelError(f"{name}: is nested too deeply") from None


def read_checkpoint_as_owner(path: Path) -> Checkpoint:
    """Read the model at a path that a user of a command names: for root, with the rights of its owner."""
    with as_owner(path) as found:
        return read_checkpoint(found)


def _read_folder(path: ModelPath) -> Checkpoint:
    if (path / diffusion.MODEL_INDEX).exists():
        return _read_pipeline(path)
    if (path / INDEX).exists():
        return _read_index(path / INDEX)
    shards = list_files(path, "*.safetensors")
    if shards:
        return _read_shards(path, shards, list_missing(shards))
    every = list_files(path, "*.gguf")
    files = [file for file in every if PROJECTOR not in file.name.lower()]
    if files and _are_parts(files):
        return with_projectors(read_gguf(files), [file for file in every if file not in files])
    if (path / CONFIG).exists():
        return build_checkpoint(path, _config(path / CONFIG), None, CONFIG)
    if files:
        raise InvalidInputError(
            f"{path}: has {len(files)} GGUF files; name one of them, for example {files[0].name}"
        )
    raise InvalidInputError(f"{path}: has no safetensors files, no GGUF files and no {CONFIG}")


def _read_pipeline(path: ModelPath) -> Checkpoint:
    return _build_pipeline(path, diffusion.read_folder(path), "diffusers")


def _build_pipeline(path: ModelPath, found: diffusion.Found, source: str) -> Checkpoint:
    note, size = found.problem, found.weights_bytes
    return Checkpoint(str(path), source, None, size, 0, 2.0, note, unknown=found.unknown, pipeline=found.pipeline)


def _read_index(path: ModelPath) -> Checkpoint:
    # The index only lists the shards; sizes come from the shards' headers.
    names = _shard_names(path)
    if not names or len(names) > MAX_SHARDS:
        raise InvalidInputError(f"{path}: has no readable weight_map from tensors to files")
    for name in names:
        if PurePosixPath(name).name != name:
            raise InvalidInputError(f"{path}: names the file {name[:80]!r}, which is not in the same folder")
    files = [path.parent / name for name in sorted(names)]
    shards = [file for file in files if file.exists()]
    if not shards and (path.parent / CONFIG).exists():
        return build_checkpoint(path.parent, _config(path.parent / CONFIG), None, CONFIG)
    if not shards:
        raise UnknownModelError(f"{path}: none of the {len(files)} files that it names is there; download them")
    return _read_shards(path.parent, shards, [file.name for file in files if file not in shards])


def _read_shards(path: ModelPath, shards: Sequence[ModelPath], missing: Sequence[str]) -> Checkpoint:
    """Read the safetensors files of a folder. `missing`: names of others that belong to them."""
    weights = safetensors.sum_tensor_bytes(shards)
    plain = weights.is_plain and not missing  # else the names tell more
    found = build_checkpoint(path, _config_beside(path / CONFIG), weights.bytes, "safetensors", plain)
    return with_unknown(found, describe_missing(missing))


def list_missing(files: Sequence[ModelPath]) -> list[str]:
    return list_missing_names([file.name for file in files])


def list_missing_names(names: Sequence[str]) -> list[str]:
    """Return the parts that the names of files imply and that are not among them: model-00002-of-00003.gguf."""
    found = set(names)
    sets = {(match[1], match[2], match[3]) for name in found if (match := PART.fullmatch(name))}
    wanted = (
        f"{stem}-{at:05}-of-{count}{suffix}"
        for stem, count, suffix in sorted(sets)
        for at in range(1, int(count) + 1)
    )
    return [name for name in islice(wanted, MAX_SHARDS) if name not in found]


def describe_missing(names: Sequence[str]) -> str:
    """Return a sentence about files of a model that are not there, empty for none."""
    if not names:
        return ""
    listed = some_of([name[-80:] for name in names], NAMED_FILES)
    return f"{len(names)} of its files {'is' if len(names) == 1 else 'are'} missing and not counted: {listed}."


def with_unknown(found: Checkpoint, *sentences: str) -> Checkpoint:
    """Return a model that lacks something, beside what it lacks already."""
    return replace(found, unknown=" ".join(one for one in (*sentences, found.unknown) if one))


class _Index(Struct):
    weight_map: dict[str, str] = {}


def _shard_names(path: ModelPath) -> set[str]:
    return parse_index(read_small(path, MAX_INDEX_BYTES))


def parse_index(data: bytes) -> set[str]:
    """Return the names of the files in an index, none if it is not readable."""
    try:
        found = msgspec.json.decode(data, type=_Index)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return set()
    names = set(found.weight_map.values())
    return names if all(name.endswith(".safetensors") for name in names) else set()


def _read_file(path: ModelPath) -> Checkpoint:
    if path.exists() and (part := PART.fullmatch(path.name)):
        files = [file for file in list_files(path.parent, f"*-of-{part[2]}{part[3]}") if is_part_of(file, part)]
        return read_gguf(files) if path.suffix == ".gguf" else _read_shards(path.parent, files, list_missing(files))
    if path.suffix == ".gguf":
        return read_gguf([path])
    if path.suffix == ".safetensors":
        header, room = safetensors.read_header(path)
        weights = safetensors.checked_bytes(header, room, str(path))
        if images := diffusion.read_single_file(header):
            return _build_pipeline(path, images, "safetensors")
        config, plain = _config_beside(path.parent / CONFIG), safetensors.is_plain(header)
        return build_checkpoint(path, config, weights, "safetensors", plain)
    if not path.exists():
        raise InvalidInputError(
            f'"{path}" is no size, file or name; for example 20GiB, a folder with safetensors, ORG/NAME or NAME:TAG'
        )
    raise InvalidInputError(f"{path}: is not a .safetensors or .gguf file, {INDEX} or {CONFIG}")


def _are_parts(files: Sequence[ModelPath]) -> bool:
    """Return True for one file, or parts of one model, named like name-00001-of-00003.gguf."""
    first = PART.fullmatch(files[0].name)
    return len(files) == 1 or (first is not None and all(is_part_of(file, first) for file in files))


def is_part_of(file: ModelPath, part: re.Match[str]) -> bool:
    """Return True for a file of the same model."""
    found = PART.fullmatch(file.name)
    return found is not None and found.groups() == part.groups()


def read_gguf(files: Sequence[ModelPath]) -> Checkpoint:
    """Read the parts of one model that are there. Raises InvalidInputError and OSError."""
    # Only the first part has the metadata; each part has some of the tensors.
    heads = gguf.read_heads(files)
    weights, numbers = (sum(getattr(head, name) for head in heads) for name in ("tensor_bytes", "parameters"))
    found = build_gguf(str(files[0]), heads[0].keys, weights, numbers)
    shape = found.transformer
    lacks = ""
    if shape is not None:
        lacks = describe_part(numbers, shape.parameters, "parameters", MIN_PARAMETERS_RATIO)
    parts = heads[0].keys.get("split.count")
    if isinstance(parts, int) and parts > len(files):
        lacks = f"It is one of {parts} parts of a model, and {parts - len(files)} of them are not there."
    return with_unknown(found, describe_missing(list_missing(files)) or lacks)


def build_gguf(name: str, keys: Mapping[str, gguf.Value], weights: int, numbers: int) -> Checkpoint:
    """Return the model of a file's keys. `numbers`: how many weights have these bytes, 0 if the shape tells."""
    context = keys.get(f"{keys.get('general.architecture')}.context_length")
    known = context if isinstance(context, int) else 0
    shape, note, unknown = None, "", ""
    try:
        shape, unknown = gguf.parse_shape(keys)
    except (InvalidInputError, OverflowError) as error:
        note = str(error)
    numbers = numbers or (shape.parameters if shape else 0)
    bytes_each = min(16.0, max(0.125, weights / numbers)) if numbers else 2.0
    written = keys.get("general.file_type")
    form = FILE_TYPES.get(written, OTHER_FILE) if isinstance(written, int) else OTHER_FILE
    return Checkpoint(name, "GGUF", shape, weights, known, bytes_each, note, unknown=unknown, file_format=form)


def with_projectors(found: Checkpoint, files: Sequence[ModelPath]) -> Checkpoint:
    """Add the largest of a GGUF model's vision towers, which are files of their own."""
    sizes = {str(file): gguf.read_head(file).tensor_bytes for file in files}
    largest = max(sizes, key=lambda name: sizes[name], default="")
    return replace(add_weights(found, sizes.get(largest, 0)), projector=largest)


def add_weights(found: Checkpoint, added: int) -> Checkpoint:
    """Return a model with further weights. If its own are not known, neither is the sum."""
    if found.weights_bytes is None or not added:
        return found
    other = OTHER_FILE if found.file_format else ""
    return replace(found, weights_bytes=found.weights_bytes + added, file_format=other)


def choose_gguf(names: Sequence[str], variant: str, subject: str) -> list[str]:
    """Return the files of the one model among GGUF files, or of that with a variant such as Q4_K_M in its name.

    Raises UnknownModelError if it is not one.
    """
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        if PROJECTOR not in name.lower():
            part = PART.fullmatch(name)
            models.setdefault(part[1] if part else name.removesuffix(".gguf"), []).append(name)
    # Q6_K is neither Q6_K_L nor a part of IQ6_K: formats contain underscores. Some names have one before them.
    before = "[A-Za-z0-9]" if re.search("[0-9]", variant) else r"\w"
    plain, mixed = (
        [files for stem, files in models.items() if re.search(rf"{start}{re.escape(variant)}($|[-./])", stem, re.I)]
        for start in (f"(?<!{OWN_MIX})(?<!{before})", OWN_MIX)
    )
    tensors = [files for files in models.values() if not STATISTICS.search(files[0])]
    wanted = (plain or mixed) if variant else tensors
    if len(wanted) == 1:
        return wanted[0]
    stems = sorted(
        (PurePosixPath(stem).name for stem in models), key=lambda stem: variant.lower() not in stem.lower()
    )
    listed = some_of(stems, NAMED_VARIANTS)
    which = f"{len(wanted)} of them are {variant}" if variant else "name one by the format in its name"
    raise UnknownModelError(
        f"{subject}: has {len(models)} GGUF models, {listed}; {which}, for example {subject}:Q4_K_M"
    )


def describe_part(found: int, wanted: int, what: str, ratio: float = MIN_WEIGHTS_RATIO) -> str:
    """Return a sentence if files hold less than this ratio of a model, else nothing."""
    if found >= ratio * wanted:
        return ""
    return f"Its files have {found} {what}, and its shape about {wanted}: the others are not counted."


def build_checkpoint(
    path: ModelPath | str, config: Config | str | None, weights: int | None, source: str, is_plain: bool = False
) -> Checkpoint:
    """Return the model of a config, or of none for the reason that is a text. `is_plain`: see TensorBytes."""
    if config is None or isinstance(config, str):
        return Checkpoint(str(path), source, None, weights, 0, 2.0, config or "")
    found = replace(describe_config(config), name=str(path), source=source, weights_bytes=weights)
    if weights is None or config.problem:
        return found
    number, ratio = (2.0, MIN_PARAMETERS_RATIO) if is_plain else (found.dtype_bytes, MIN_WEIGHTS_RATIO)
    wanted = compute_weights(config.transformer, number, found.scope)
    return with_unknown(found, describe_part(weights, wanted, "bytes", ratio))


def describe_config(config: Config) -> Checkpoint:
    """Return the model of a config.json without weights."""
    form = parse_format(config.dtype)
    shape, context, problem = config.transformer, config.context, config.problem
    return Checkpoint(
        CONFIG, CONFIG, shape, None, context, form.bytes, scope=form.scope, problem=problem, unknown=config.unknown
    )


def _config(path: ModelPath) -> Config:
    return parse_config(safetensors.read_object(path), str(path))


def _config_beside(path: ModelPath) -> Config | str | None:
    """Return the config of a folder whose tensors are known, or why its family is not."""
    return parse_config_beside(read_small(path, safetensors.MAX_JSON_BYTES), str(path)) if path.exists() else None


def parse_config_beside(text: bytes, name: str) -> Config | str:
    """Parse the config.json of tensors that are known, or return why its family is not."""
    try:
        return parse_config(safetensors.parse_object(text, name), name)
    except UnknownFamilyError as error:
        return str(error).removeprefix(f"{name}: ").split(", and ")[0]
