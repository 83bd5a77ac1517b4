"""Heads of a model's files from a hub of Hugging Face, within a limit of bytes and requests. No tensor is read.

A question takes the list of files, config.json, the index, and the first bytes of each file with tensors. Sizes of
files without a head are upper bounds: they contain their header. The answer is kept for later questions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.build_info import __version__
from memwatch.core.http import MAX_HEADER_BYTES as MAX_HTTP_HEADER_BYTES
from memwatch.core.http import USER_AGENT, DeadlineSocket, GetError, authority, connect, request
from memwatch.core.printable import describe_error
from memwatch.core.runtime.regular_file import read_regular
from memwatch.planning import gguf, safetensors
from memwatch.planning.arguments import InvalidInputError, UnknownModelError
from memwatch.planning.checkpoint import (
    CONFIG,
    INDEX,
    MAX_SHARDS,
    PART,
    PROJECTOR,
    Checkpoint,
    build_checkpoint,
    build_gguf,
    choose_gguf,
    describe_missing,
    list_missing_names,
    parse_config_beside,
    parse_index,
    reading,
    with_unknown,
)
from memwatch.planning.diffusion import MODEL_INDEX
from memwatch.planning.model_file import COMMIT, repository_folder

ENDPOINT = "https://huggingface.co"
# Limits of one question.
MAX_BYTES = 1_000_000
MAX_REQUESTS = 20
SECONDS = 20.0
MAX_REDIRECTS = 4
REDIRECTS = (301, 302, 303, 307, 308)
HEAD_BYTES = 48 << 10
# A file of more is no model: 16 TiB.
MAX_FILE_BYTES = 1 << 44
MAX_KEPT_BYTES = 64 << 10
NOT_HTTP = "sent an answer that is cut off, or is not HTTP"
TOKEN, ADDRESS = "HF_TOKEN", "HF_ENDPOINT"
REMEDIES = {404: "check the name and the revision", 429: "retry later"}
# The hub answers 401 for names that it does not have as well, and to a token that it does not know.
NO_ACCESS = {
    401: "no such name, or it is gated: check the name, accept its license on its page, and set HF_TOKEN",
    403: "it is gated or private: accept its license on its page, and set HF_TOKEN",
}
NO_ACCESS_BY_TOKEN = {
    401: "it does not accept the token in HF_TOKEN: set another one",
    403: "the owner of the token in HF_TOKEN has no access: accept its license on its page, or set another one",
}


class HubError(UnknownModelError):
    """The hub did not answer, or not with what is needed."""


class HubName(Struct, frozen=True):
    """A repository, the format of one of its GGUF files, empty for the only one, and a revision."""

    repository: str
    variant: str = ""
    revision: str = "main"

    def __str__(self) -> str:
        variant = f":{self.variant}" if self.variant else ""
        return f"{self.repository}{variant}" + (f"@{self.revision}" if self.revision != "main" else "")


class File(Struct, frozen=True):
    """A file of a repository. `size`: None if the hub does not tell."""

    rfilename: str
    size: int | None = None


class Repository(Struct, frozen=True):
    """The answer about a repository."""

    sha: str
    siblings: tuple[File, ...] = field(default=())


class Kept(Struct, frozen=True):
    """An answer from the hub, by the version that built it."""

    version: str
    sha: str
    checkpoint: Checkpoint


class Head(Struct, frozen=True):
    """The first bytes of a file, and its size."""

    data: bytes
    size: int


def read_online(name: HubName, environ: Mapping[str, str]) -> Checkpoint:
    """Ask the hub. What was read of the same commit before is not read again. Raises UnknownModelError."""
    hub = Hub(environ, str(name))
    found = hub.describe_repository(name)
    kept = _load(name, environ)
    if kept is not None and kept.sha == found.sha:
        return kept.checkpoint
    with reading(name):
        checkpoint = _read(hub, name, found)
    _keep(name, Kept(__version__, found.sha, checkpoint), environ)
    return checkpoint


def read_kept(name: HubName, environ: Mapping[str, str]) -> Checkpoint | None:
    """Return what was read before, without a network, None if nothing was."""
    kept = _load(name, environ)
    return None if kept is None else kept.checkpoint


class Hub:
    """A hub, with what is left of the limits of one question."""

    def __init__(self, environ: Mapping[str, str], subject: str) -> None:
        self.subject = subject
        self._root: str = environ.get(ADDRESS) or ENDPOINT
        self._token: str = environ.get(TOKEN, "").strip()
        self._deadline: float = time.monotonic() + SECONDS
        self._bytes: int = MAX_BYTES
        self._requests: int = MAX_REQUESTS
        self._cost: int = 1
        parts = _split(self._root)
        if self._token and not (self._token.isascii() and self._token.isprintable() and " " not in self._token):
            raise HubError(f"{TOKEN} is not a token: it has a space or another character that no token has")
        if self._token and parts[0] == "http" and parts[1] not in ("127.0.0.1", "::1", "localhost"):
            raise HubError(f"{TOKEN} is not sent without TLS; set {ADDRESS} to an address with https")
        self._own = parts[:3]

    @property
    def has_room(self) -> bool:
        """True if the head of one more file is within the limits."""
        return self._bytes >= HEAD_BYTES and self._requests >= self._cost and time.monotonic() < self._deadline

    def describe_repository(self, name: HubName) -> Repository:
        path = f"/api/models/{name.repository}/revision/{quote(name.revision, safe='')}?blobs=true"
        data = self._get(path, self._bytes // 2).data
        try:
            found = msgspec.json.decode(data, type=Repository)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise HubError(f"{self.subject}: the hub's list of its files is not readable") from None
        sizes = [one.size for one in found.siblings if one.size is not None]
        if not COMMIT.fullmatch(found.sha) or any(not 0 <= one <= MAX_FILE_BYTES for one in sizes):
            raise HubError(f"{self.subject}: the hub's list of its files has impossible values")
        return found

    def whole(self, name: HubName, sha: str, file: str) -> bytes:
        return self._get(_path(name, sha, file), self._bytes // 2).data

    def head(self, name: HubName, sha: str, file: str) -> Head:
        """Return the first bytes of a file by a range request. A hub that ignores the range is not read further."""
        before = self._requests
        found = self._get(_path(name, sha, file), HEAD_BYTES, is_range=True)
        self._cost = before - self._requests
        return found

    def _get(self, path: str, most: int, is_range: bool = False) -> Head:
        """Follow redirects. The token is sent to the hub itself and to no other host."""
        url = self._root.rstrip("/") + path
        for _ in range(MAX_REDIRECTS + 1):
            if self._requests <= 0 or self._bytes <= 0:
                raise HubError(f"{self.subject}: needs more than {MAX_REQUESTS} requests or {MAX_BYTES} bytes")
            self._requests -= 1
            found = self._exchange(url, min(most, self._bytes), is_range)
            if isinstance(found, Head):
                self._bytes -= len(found.data)
                return found
            try:
                to = urljoin(url, found)
            except ValueError:
                raise HubError(f"{self.subject}: the hub redirects to what is no address") from None
            if url.startswith("https:") and not to.startswith("https:"):
                raise HubError(
                    f"{self.subject}: the hub redirects to an address without TLS, which is not followed"
                )
            url = to
        raise HubError(f"{self.subject}: the hub redirects more than {MAX_REDIRECTS} times")

    def _exchange(self, url: str, most: int, is_range: bool) -> Head | str:
        """Return the first bytes of an answer, or the address of a redirect."""
        from http.client import HTTPException

        scheme, host, port, path = _split(url)
        headers = {
            "Host": authority(host, port, scheme == "https"),
            "User-Agent": USER_AGENT,
            "Connection": "close",
        }
        if is_range:
            headers["Range"] = f"bytes=0-{most - 1}"
        if self._token and (scheme, host, port) == self._own:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            with connect(host, port, self._deadline, tls=_tls() if scheme == "https" else None) as connected:
                limited = DeadlineSocket(connected, self._deadline, most + MAX_HTTP_HEADER_BYTES)
                return self._answer(request(limited, "GET", path, headers), most, is_range)
        except HubError:
            raise
        except TimeoutError:
            raise HubError(f"{self.subject}: {host} did not answer within {SECONDS:g} s; retry later") from None
        except HTTPException:
            raise HubError(f"{self.subject}: {host} {NOT_HTTP}") from None
        except (OSError, UnicodeError, GetError) as error:
            why = describe_error(error)
            raise HubError(
                f"{self.subject}: cannot reach {host} ({why}); check the network and {ADDRESS}"
            ) from None
        except ValueError:  # a length of chunks, for example
            raise HubError(f"{self.subject}: {host} {NOT_HTTP}") from None

    def _answer(self, response: Any, most: int, is_range: bool) -> Head | str:  # noqa: ANN401  HTTPResponse
        status, location = response.status, response.headers["Location"]
        if status in REDIRECTS and location:
            return str(location)
        if status not in (200, 206):
            remedies = {**REMEDIES, **(NO_ACCESS_BY_TOKEN if self._token else NO_ACCESS)}
            remedy = remedies.get(status, "retry later" if status >= 500 else "check the address of the hub")
            raise HubError(f"{self.subject}: the hub answered {status}; {remedy}")
        length = response.length
        if not is_range and (length or 0) > most:
            raise HubError(f"{self.subject}: a file of {length} bytes; at most {most} of it are read")
        data: bytes = response.read(most if is_range else most + 1)
        if not is_range and len(data) > most:
            raise HubError(f"{self.subject}: the answer is larger than {most} bytes")
        if length is not None and len(data) < min(most, length):
            raise HubError(f"{self.subject}: the answer is cut off; retry later")
        return Head(data, _whole_size(status, response.headers["Content-Range"], length, len(data)))


def _whole_size(status: int, content_range: str | None, length: int | None, read: int) -> int:
    """Return the size of a file of which a part was sent."""
    total = (content_range or "").rpartition("/")[2] if status == 206 else str(read if length is None else length)
    return int(total) if total.isascii() and total.isdigit() and len(total) < 16 else -1


def _split(url: str) -> tuple[str, str, int, str]:
    """Return scheme, host, port, and path with query. Raises HubError."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise HubError(f"{ADDRESS} or a redirect is not the address of a server") from None
    host = parts.hostname
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or not is_plain:
        raise HubError(f"{ADDRESS} or a redirect is not an address with http or https, and without a login")
    return parts.scheme, host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _tls() -> Any:  # noqa: ANN401  ssl.SSLContext
    import ssl  # takes 10 ms

    return ssl.create_default_context()


def _path(name: HubName, sha: str, file: str) -> str:
    return f"/{name.repository}/resolve/{sha}/{quote(file)}"


def _read(hub: Hub, name: HubName, found: Repository) -> Checkpoint:
    """Read a model of a known commit."""
    files = {one.rfilename: one.size for one in found.siblings[: 4 * MAX_SHARDS]}
    subject = str(name)
    if MODEL_INDEX in files:
        known = [size for file, size in files.items() if file.endswith(".safetensors") and size]
        why = "it is a pipeline of diffusers, whose components are read from a folder only"
        return Checkpoint(name.repository, "diffusers", None, sum(known), 0, 2.0, why)
    if name.variant:
        if not any(file.endswith(".gguf") for file in files):
            raise no_variant(name)
        return _read_gguf(hub, name, found.sha, files)
    shards, missing = _choose_shards(hub, name, found.sha, files)
    if shards or not any(file.endswith(".gguf") for file in files):
        config = _read_config(hub, name, found.sha) if CONFIG in files else None
        if config is None and not shards:
            raise UnknownModelError(f"{subject}: has no safetensors files, no GGUF files and no {CONFIG}")
        sizes = list(_size_shards(hub, name, found.sha, shards, files))
        lacking = [*missing, *(shard for shard, size in zip(shards, sizes, strict=True) if size is None)]
        weights = sum(size for size in sizes if size is not None) if shards else None
        built = build_checkpoint(name.repository, config, weights, "safetensors" if shards else CONFIG)
        return with_unknown(built, describe_missing(lacking))
    return _read_gguf(hub, name, found.sha, files)


def _read_config(hub: Hub, name: HubName, sha: str) -> Any:  # noqa: ANN401  Config, or why there is none
    return parse_config_beside(hub.whole(name, sha, CONFIG), f"{name}: {CONFIG}")


def _choose_shards(
    hub: Hub, name: HubName, sha: str, files: Mapping[str, int | None]
) -> tuple[list[str], list[str]]:
    """Return the safetensors files that make the model, and those that are missing."""
    there = [file for file in files if file.endswith(".safetensors") and "/" not in file]
    if "model.safetensors" in there:
        return ["model.safetensors"], []
    size = files.get(INDEX)
    if INDEX in files and size is not None and size <= MAX_BYTES // 3:
        named = sorted(parse_index(hub.whole(name, sha, INDEX)))
        if named:
            return [file for file in named if file in files], [file for file in named if file not in files]
    parts = [file for file in there if PART.fullmatch(file)]
    return (parts, list_missing_names(parts)) if parts else (there, [])


def _size_shards(
    hub: Hub, name: HubName, sha: str, shards: Sequence[str], files: Mapping[str, int | None]
) -> Iterator[int | None]:
    """Yield the bytes of the tensors of each file: by its head, else by its size, None if both are unknown."""
    for shard in shards:
        if not hub.has_room:
            yield files[shard]
            continue
        head = hub.head(name, sha, shard)
        size = files[shard] if head.size < 0 else head.size
        if size is None:
            yield None
            continue
        length, room = int.from_bytes(head.data[:8], "little"), size - 8
        if len(head.data) < 8 or length > room or size > MAX_FILE_BYTES:
            raise HubError(f"{name}: {shard[-80:]} is not a safetensors file of {size} bytes")
        if length <= len(head.data) - 8:
            safetensors.checked_bytes(
                safetensors.parse_header(head.data[8 : 8 + length], shard[-80:]), room - length, shard[-80:]
            )
        yield room - length


def _read_gguf(hub: Hub, name: HubName, sha: str, files: Mapping[str, int | None]) -> Checkpoint:
    """Read a GGUF model: its keys from the first bytes, its size from the sizes of its files."""
    subject = str(name)
    every = [file for file in files if file.endswith(".gguf")]
    chosen = choose_gguf(every, name.variant, name.repository)
    towers = {file: files[file] or 0 for file in every if PROJECTOR in file.lower()}
    tower = max(towers, key=lambda file: towers[file], default="")
    keys = gguf.read_first_keys(hub.head(name, sha, chosen[0]).data, f"{subject}: {chosen[0][-80:]}")
    missing = [*list_missing_names(chosen), *(file for file in chosen if files[file] is None)]
    weights = sum(files[file] or 0 for file in chosen) + towers.get(tower, 0)
    found = build_gguf(PurePosixPath(chosen[0]).name, keys, weights, 0)
    return with_unknown(replace(found, projector=PurePosixPath(tower).name), describe_missing(missing))


def no_variant(name: HubName) -> UnknownModelError:
    return UnknownModelError(
        f"{name}: has no GGUF files, of which {name.variant} could be one; leave :{name.variant} out, "
        "or use --dtype"
    )


def expand_home(folder: str, variable: str) -> Path:
    """Return a folder that may begin with ~. Raises UnknownModelError for a user without a home."""
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        words = f"{folder}: that home folder is not known; set {variable} to a whole path"
        raise UnknownModelError(words) from None


def _kept_path(name: HubName, environ: Mapping[str, str]) -> Path:
    folder = expand_home(environ.get("XDG_CACHE_HOME") or "~/.cache", "XDG_CACHE_HOME") / "memwatch" / "models"
    parts = (repository_folder(name.repository), name.variant, name.revision.replace("/", "--"))
    return folder / f"{'@'.join(parts)}.json"


def _load(name: HubName, environ: Mapping[str, str]) -> Kept | None:
    try:
        kept = msgspec.json.decode(read_regular(_kept_path(name, environ), MAX_KEPT_BYTES), type=Kept)
    except (OSError, msgspec.MsgspecError, InvalidInputError, UnicodeDecodeError):
        return None
    return kept if kept.version == __version__ else None


def _keep(name: HubName, kept: Kept, environ: Mapping[str, str]) -> None:
    """Keep an answer. Without a folder to write to it is read again the next time."""
    path = _kept_path(name, environ)
    beside = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside.write_bytes(msgspec.json.encode(kept))
        beside.replace(path)
    except OSError:
        return
