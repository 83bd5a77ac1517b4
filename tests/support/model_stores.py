"""Models as the caches of Hugging Face, the store of Ollama and a hub have them.

Layouts: huggingface_hub's guide "Understand caching" and its file_download.py; Ollama's server/manifest.go and
server/modelpath.go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from support.model_hub import SHA


def hugging_face_cache(cache: Path, name: str, files: Path, revision: str = "main", sha: str = SHA) -> Path:
    """Put the files of a folder into a cache: blobs by digest, and links to them in the snapshot of a commit."""
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / sha
    for sub in (folder / "blobs", folder / "refs", snapshot):
        sub.mkdir(parents=True, exist_ok=True)
    for file in [one for one in files.rglob("*") if one.is_file()]:
        path = file.relative_to(files)
        digest = hashlib.sha256(f"{sha}{path}".encode()).hexdigest()
        file.rename(folder / "blobs" / digest)
        (snapshot / path).parent.mkdir(exist_ok=True)
        (snapshot / path).symlink_to("../" * (1 + len(path.parts)) + f"blobs/{digest}")
    (folder / "refs" / revision).write_text(sha)
    return snapshot


def ollama_store(store: Path, name: str, layers: Mapping[str, Path], host: str = "registry.example") -> Path:
    """Put files into a store, by the kind of their layer. `name`: library/qwen3/8b, for example."""
    made = []
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    for kind, file in layers.items():
        digest = hashlib.sha256(str(file).encode()).hexdigest()
        made.append(
            {
                "mediaType": f"application/vnd.ollama.image.{kind}",
                "digest": f"sha256:{digest}",
                "size": file.stat().st_size,
            }
        )
        file.rename(store / "blobs" / f"sha256-{digest}")
    manifest = store / "manifests" / host / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": made}))
    return manifest


def hub_files(folder: Path, head: int = 1 << 18) -> dict[str, tuple[bytes, int]]:
    """Return the files of a folder as a hub has them, with their first bytes only."""
    found = {}
    for file in [one for one in folder.rglob("*") if one.is_file()]:
        with file.open("rb") as opened:
            found[str(file.relative_to(folder))] = opened.read(head), file.stat().st_size
    return found
