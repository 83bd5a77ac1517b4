"""Write the locks: python deploy/package/lock.py (make lock).

lock.txt has every dependency of the Debian package and the image; build-lock.txt has those that build their wheels.
Both have exact versions with the SHA-256 of each file, for all supported Pythons and processors. The versions are
those that the tests use. uv resolves them; it can do so for Pythons and processors that are not here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from closure import BUILD_LOCK, CONSTRAINTS, LOCK, ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# auth: passwords. notify: chat and mail.
EXTRAS = ("auth", "notify")
HEADER = "# Written by `make lock`: versions of tests/constraints.txt, with the hashes of their files.\n"


def read_projects() -> list[dict[str, Any]]:
    return [tomllib.loads((ROOT / name).read_text()) for name in ("pyproject.toml", "daemon/pyproject.toml")]


def runtime_requirements() -> list[str]:
    daemon, library = read_projects()
    hook = daemon["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    extras = daemon["project"]["optional-dependencies"]
    added = (text for name in EXTRAS for text in extras[name])
    return [*hook["dependencies"], *library["project"]["dependencies"], *added]


def build_requirements() -> list[str]:
    return sorted({text for project in read_projects() for text in project["build-system"]["requires"]})


def write_lock(path: Path, requirements: list[str]) -> None:
    command = ["uv", "--quiet", "pip", "compile", "-", "--universal", "--python-version=3.10", "--generate-hashes"]
    command += [f"--constraint={CONSTRAINTS}", "--no-header", "--no-annotate", "--upgrade"]
    done = subprocess.run(command, input="\n".join(requirements), check=True, stdout=subprocess.PIPE, text=True)
    path.write_text(HEADER + done.stdout)


if __name__ == "__main__":
    write_lock(LOCK, runtime_requirements())
    write_lock(BUILD_LOCK, build_requirements())
