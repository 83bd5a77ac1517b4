"""Files of a model that a process serves, given as a path or as the name of a repository of Hugging Face."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from memwatch.core.linux.user_files import UserFiles, UserPath
from memwatch.core.runtime.regular_file import open_regular

REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
COMMIT = re.compile(r"[0-9a-f]{40}")
# Folder of downloads below a user's home (huggingface_hub), and that of the image of TGI.
CACHES = (".cache/huggingface/hub", "/data")
MAX_PASSWD_BYTES = 1 << 20


def find_model(name: str, files: UserFiles, home: str, cwd: str) -> UserPath | None:
    """Return the folder or file of a model, None if it is not there or the process may not read it.

    `home` and `cwd`: folders of the process, below its root.
    """
    for path in candidates(name, home, cwd):
        found: UserPath | None = files.path(path)
        if found and REPOSITORY.fullmatch(name) and found.name.startswith("models--"):
            snapshot = find_snapshot(found)
            found = found / snapshot if snapshot else None
        if found and found.exists():
            return found
    return None


def candidates(name: str, home: str, cwd: str) -> Iterator[str]:
    if not name or "\0" in name:
        return
    if name.startswith("/"):
        yield name
        return
    if cwd:
        yield os.path.join(cwd, name)  # `//name` would be another root
    if REPOSITORY.fullmatch(name):
        folder = repository_folder(name)
        for cache in CACHES:
            yield f"{cache}/{folder}" if cache.startswith("/") else f"{home}/{cache}/{folder}"


def find_snapshot(folder: Path | UserPath, revision: str = "main") -> str:
    """Return the path to a branch, a tag or a commit in a folder of huggingface_hub, empty if it is not there."""
    try:
        with open_regular(folder / f"refs/{revision}") as (file, _):
            commit = file.read(64).decode("ascii", "replace").strip()
    except OSError:
        commit = revision
    return f"snapshots/{commit}" if COMMIT.fullmatch(commit) else ""


def repository_folder(name: str) -> str:
    """Return the name of a repository's folder in a cache of huggingface_hub."""
    return "models--" + name.replace("/", "--")


def find_home(files: UserFiles, uid: int | None) -> str:
    """Return the home of a user, from the file of that root; empty if it is not known."""
    data = files.path("etc/passwd").read(MAX_PASSWD_BYTES) or b""
    rows = [line.split(b":") for line in data.splitlines()]
    return next((os.fsdecode(row[5]) for row in rows if len(row) == 7 and row[2] == str(uid).encode()), "")
