"""Models by name: in the cache of Hugging Face, in the store of Ollama, or on a hub if that is asked for.

A file or folder with that name comes first. The stores are those of the user who runs the command, and of the
service of Ollama, read with the rights of that user: for root, with those of their owners.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from memwatch.core.linux.user_files import as_owner
from memwatch.planning import hub
from memwatch.planning.arguments import InvalidInputError, UnknownModelError, parse_bytes
from memwatch.planning.checkpoint import (
    PROJECTOR,
    Checkpoint,
    add_weights,
    choose_gguf,
    read_checkpoint,
    read_checkpoint_as_owner,
    read_gguf,
    reading,
    with_projectors,
)
from memwatch.planning.gguf import read_head
from memwatch.planning.hub import HubName
from memwatch.planning.model_file import REPOSITORY, ModelPath, find_snapshot, list_files, repository_folder
from memwatch.planning.safetensors import read_object

OLLAMA = "ollama:"
# ORG/NAME, then :FORMAT of one of several GGUF files, then @REVISION.
HUB_NAME = re.compile(rf"({REPOSITORY.pattern})(?::([A-Za-z0-9][\w.-]{{0,40}}))?(?:@([\w][\w./-]{{0,99}}))?")
# HOST/OWNER/NAME:TAG, of which all but the name may be left out.
OLLAMA_NAME = re.compile(r"((?:[A-Za-z0-9][\w.-]{0,79}/){0,3}[A-Za-z0-9][\w.-]{0,79})(?::([\w][\w.-]{0,79}))?")
LATEST, LIBRARY = "latest", "library"
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
# Media types of layers end in these words.
MODEL_LAYER, PROJECTOR_LAYER, ADAPTER_LAYER = ".model", ".projector", ".adapter"
MAX_LAYERS = 256
SERVICE_USER = "ollama"
ONLINE = "add --online (in Python: online=True) to read the first bytes of its files from the hub"


def read_subject(subject: str, online: bool = False, environ: Mapping[str, str] = os.environ) -> Checkpoint:
    """Read the model at a path, or of a name. Raises InvalidInputError, UnknownModelError if it is not read."""
    if "\0" in subject:
        raise InvalidInputError("the path has a NUL, which no file's name has")
    if not subject.strip() or subject.startswith("-") or (subject[:1].isdigit() and " " in subject):
        parse_bytes(subject)
    if subject.startswith(OLLAMA) and (match := OLLAMA_NAME.fullmatch(subject.removeprefix(OLLAMA))):
        return read_ollama(match[1], match[2] or LATEST, environ)
    if not os.path.lexists(subject):
        if (name := parse_hub_name(subject)) is not None:
            return read_repository(name, online, environ)
        if (match := OLLAMA_NAME.fullmatch(subject)) and match[2] and "/" not in match[1]:
            return read_ollama(match[1], match[2], environ)
    return read_checkpoint_as_owner(Path(subject))


def parse_hub_name(subject: str) -> HubName | None:
    """Return the parts of ORG/NAME[:FORMAT][@REVISION], None for anything else."""
    match = HUB_NAME.fullmatch(subject)
    if match is None or ".." in subject or subject.endswith((".gguf", ".safetensors", ".json")):
        return None
    return HubName(match[1], match[2] or "", match[3] or "main")


def read_repository(name: HubName, online: bool, environ: Mapping[str, str]) -> Checkpoint:
    """Read a model from the cache of Hugging Face, else what was read from the hub before, else from the hub."""
    cache = find_cache(environ)
    with reading(name.repository), as_owner(cache / repository_folder(name.repository)) as folder:
        snapshot = find_snapshot(folder, name.revision)
        if snapshot and (folder / snapshot).is_dir():
            if not online:
                return read_snapshot(folder / snapshot, name)
            return _complete(folder / snapshot, name, cache, environ)
    found = hub.read_online(name, environ) if online else hub.read_kept(name, environ)
    if found is None:
        raise UnknownModelError(f"{name}: is no file, and not in {cache}; {ONLINE}, or download it")
    return found


def _complete(folder: ModelPath, name: HubName, cache: Path, environ: Mapping[str, str]) -> Checkpoint:
    """Read a revision, from the hub if files are missing in the cache. Without an answer the files here count."""
    on_hub = replace(name, revision=folder.name)  # the same commit
    try:
        found = read_snapshot(folder, name)
    except UnknownModelError as error:
        return replace(hub.read_online(on_hub, environ), origin=f"Measured by its files on the hub: {error}.")
    if found.pipeline or (found.weights_bytes and not found.unknown):
        return found
    lacking = f"not all of its files are in {cache}"
    try:
        return replace(hub.read_online(on_hub, environ), origin=f"Measured by its files on the hub: {lacking}.")
    except hub.HubError as error:
        return replace(found, origin=f"{lacking.capitalize()}, and not found on the hub: {error}.")


def read_snapshot(folder: ModelPath, name: HubName) -> Checkpoint:
    """Read the files of a revision, of several GGUF models the one that is wanted."""
    files = {file.name: file for file in list_files(folder, "*.gguf")}
    # Repositories of large models have a folder for each format.
    for inner in list_files(folder, "*"):
        files |= {f"{inner.name}/{file.name}": file for file in list_files(inner, "*.gguf")}
    if name.variant and not files:
        raise hub.no_variant(name)
    if not name.variant and (not files or list_files(folder, "*.safetensors")):
        return read_checkpoint(folder)
    chosen = [files[one] for one in choose_gguf(list(files), name.variant, name.repository)]
    return with_projectors(read_gguf(chosen), [file for one, file in files.items() if PROJECTOR in one.lower()])


def find_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder of downloads, chosen as huggingface_hub does."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(variable):
            return hub.expand_home(environ[variable], variable)
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return hub.expand_home(home, "HF_HOME") / "hub"


def find_stores(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders in which Ollama keeps models: of this user, and of its service."""
    if environ.get("OLLAMA_MODELS"):
        yield hub.expand_home(environ["OLLAMA_MODELS"], "OLLAMA_MODELS")
        return
    import pwd

    yield hub.expand_home("~/.ollama/models", "OLLAMA_MODELS")
    with suppress(KeyError):
        yield Path(pwd.getpwnam(SERVICE_USER).pw_dir, ".ollama/models")


def read_ollama(name: str, tag: str, environ: Mapping[str, str]) -> Checkpoint:
    """Read a model from the store of Ollama."""
    stores = list(find_stores(environ))
    for store in stores:
        with reading(store), as_owner(store) as folder:
            manifest = find_manifest(folder, name, tag)
            if manifest is not None:
                return _read_layers(folder, read_object(manifest), f"{name}:{tag}")
    where = " or ".join(str(store) for store in stores)
    raise UnknownModelError(
        f"{name}:{tag}: is no file, and not in {where}; download it with: ollama pull {name}:{tag}"
    )


def find_manifest(store: ModelPath, name: str, tag: str) -> ModelPath | None:
    """Return the manifest of a model. Names without an owner are those of the library, of any registry."""
    parts = name.split("/")
    if len(parts) < 3:
        owner = parts[0] if len(parts) == 2 else LIBRARY
        hosts: Sequence[ModelPath] = list_files(store / "manifests", "*")
        paths: list[ModelPath] = [host / owner / parts[-1] / tag for host in hosts]
    else:
        paths = [store / "manifests" / name / tag]
    return next((path for path in paths if path.exists()), None)


def _read_layers(store: ModelPath, manifest: Mapping[str, object], name: str) -> Checkpoint:
    layers = manifest.get("layers")
    known = [one for one in layers[:MAX_LAYERS] if isinstance(one, dict)] if isinstance(layers, list) else []
    models = [_blob(store, one) for one in known if str(one.get("mediaType")).endswith(MODEL_LAYER)]
    towers = [_blob(store, one) for one in known if str(one.get("mediaType")).endswith(PROJECTOR_LAYER)]
    adapters = [_blob(store, one) for one in known if str(one.get("mediaType")).endswith(ADAPTER_LAYER)]
    if not models:
        raise UnknownModelError(f"{name}: its manifest has no GGUF file; models that run elsewhere have none")
    found = with_projectors(read_gguf(models), towers)
    added = sum(read_head(file).tensor_bytes for file in adapters)
    return replace(add_weights(found, added), name=str(models[0]), alias=name)


def _blob(store: ModelPath, layer: Mapping[str, object]) -> ModelPath:
    match = DIGEST.fullmatch(str(layer.get("digest")))
    if match is None:
        raise UnknownModelError(f"{store}: a manifest has no readable digest; pull the model again")
    return store / "blobs" / f"sha256-{match[1]}"
