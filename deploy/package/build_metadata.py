"""Dependencies of memwatchd, which depend on the kind of build, and its description.

A release needs memwatch of the same version, from the index. An installation from a checkout takes it from
`daemon/`, never from an index, which may have another one with this version. An editable installation contains
memwatch, since its source folder has both packages; so it has the dependencies of both.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class ProjectMetadata(MetadataHookInterface):
    """The dependencies in the hook's section of pyproject.toml, and memwatch."""

    def update(self, metadata: dict[str, Any]) -> None:
        folder = Path(self.root).absolute()
        dependencies = list(self.config["dependencies"])
        kind = os.environ.get("MEMWATCHD_BUILD", "wheel")
        if kind == "editable":
            library = tomllib.loads((folder / "daemon/pyproject.toml").read_text("utf-8"))
            dependencies += library["project"]["dependencies"]
        elif kind == "sdist" or (folder / "PKG-INFO").exists():  # the root of a source distribution has this file
            dependencies.append(f"memwatch=={read_version(folder)}")
        else:
            dependencies.append(f"memwatch @ {(folder / 'daemon').as_uri()}")
        metadata["dependencies"] = dependencies
        text = strip_links((folder / "README.md").read_text("utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def strip_links(text: str) -> str:
    """Remove comments, and pictures and links to files of this repository, which has no public address."""
    text = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    text = re.sub(r"\[([^]]*)\]\((?!https?:|#)[^)]*\)", r"\1", text)
    return re.sub(r"<!--.*?-->\n*", "", text, flags=re.DOTALL)


def read_version(folder: Path) -> str:
    version: str = runpy.run_path(str(folder / "daemon/memwatch_build.py"))["read_build"]().version
    return version
