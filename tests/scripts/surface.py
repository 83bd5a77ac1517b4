"""Everything that a user can see, written to a folder, or compared with that of another commit: `make surface`.

    PYTHONPATH=tests python -m scripts.surface --write out/surface
    PYTHONPATH=tests python -m scripts.surface --against COMMIT

For each demo and five machine folders a daemon runs, and every page, every answer of the API, /metrics, and what
the commands print is kept, with status and exit code, beside docs/reference: options, settings, metrics, paths,
names of the library. A number becomes `0`, as its digits depend on the moment; golden files have the figures.
Words, order, fields, links, labels and inputs are compared. With `--against` the other commit is checked out into a
temporary folder and runs this file as it was there; the differences are printed, and the exit code is 1 if there is
one.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memwatchd.recording.demos import DESCRIPTIONS
from scripts.golden import arguments_of
from support.client_process import call_memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.paths import MACHINES

ROOT = Path(__file__).parents[2]
FOLDERS = ("gb10", "strix-halo", "gh200-numa", "rtx-4090", "container-v2")
# The daemon plays a demo once before it serves; a tenth of its speed keeps the first frame for all answers.
SLOWLY = ("--speed", "0.1")
PAGES = ("/", "/history", "/processes", "/machines", "/devices", "/alerts", "/about", "/fit", "/fit?bytes=20GiB",
         "/incidents", "/last-words", "/runbooks", "/docs", "/no-such-page")  # fmt: skip
OTHERS = ("/metrics", "/healthz", "/readyz", "/openapi.json", "/api/v1/no-such-path", "/api/v1/history?range=1h",
          "/api/v1/fit?bytes=20GiB", "/api/v1/fit?bytes=many", "/api/v1/room?bytes=100GiB",
          "/api/v1/room?bytes=1GiB&target=cpu", "/api/v1/room?bytes=1GiB&target=x")  # fmt: skip
# Answers about this machine in place of the simulated one, or without an end.
LEFT_OUT = {"/api/v1/backends", "/api/v1/doctor", "/api/v1/stream"}
COMMANDS = ("status", "top --once", "devices", "owners", "growth", "history", "engines", "incidents", "events",
            "last-words", "alerts", "silence --list", "check", "machines", "fit 20GiB", "fit",
            "room 100GiB", "room", "advise --model 20GiB", "no-such-command")  # fmt: skip
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*(?: ?(?:[KMGTPE]iB|B|µs|ms|s|min|h|d|%)\b(?:/s)?)?(?: ago)?")
_SPACES = re.compile(r"[ \t]+")
_SPARKS = re.compile(r"[▁▂▃▄▅▆▇█░▒▓]+")
_PATH_DATA = re.compile(r'\b(d|points|style|viewBox|transform|width|height|x|y)="[^"]*"')
# The commit, whose digits are `0` already, and the folder in which it is checked out.
_COMMIT = re.compile(r"(?<=checkout\.g)[0-9a-f]+|\b[0a-f]{16,}\b|/[^\s'\"<>]*(?=/tests/machines/)")


def without_numbers(text: str) -> str:
    """Return the text with `0` for each number, and without the shapes of charts."""
    plain = _PATH_DATA.sub(r'\1=""', _SPARKS.sub("#", text))
    return _SPACES.sub(" ", _NUMBER.sub("0", plain).replace(">now<", ">0<"))


def shape_of(value: Any, name: str = "") -> Iterator[str]:
    """Yield a line for each field of a JSON answer, in order: its path with its type or its text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from shape_of(inner, f"{name}.{without_numbers(key)}")
    elif isinstance(value, list):
        yield from dict.fromkeys(line for inner in value for line in shape_of(inner, f"{name}[]"))
    elif isinstance(value, str):
        yield f"{name} {without_numbers(value)!r}"
    else:
        yield f"{name} {'number' if isinstance(value, int | float) and not isinstance(value, bool) else value}"


def readable(content_type: str, text: str) -> str:
    """Return an answer as lines that can be compared."""
    if content_type.startswith("application/json"):
        return "\n".join(shape_of(json.loads(text))) + "\n"
    if content_type.startswith("text/html"):
        text = re.sub(r">\s*<", ">\n<", text)
    lines = without_numbers(text).splitlines()
    if "/metrics" in content_type or content_type.startswith("text/plain"):
        lines = list(dict.fromkeys(lines))
    return "\n".join(line.strip() for line in lines if line.strip()) + "\n"


def answers(daemon: RunningDaemon) -> Iterator[tuple[str, str]]:
    """Yield a name and the text of every answer to a GET."""
    paths = daemon.get("/openapi.json").json["paths"]
    listed = [path for path, methods in paths.items() if "get" in methods and "{" not in path]
    for path in dict.fromkeys((*PAGES, *OTHERS, *listed)):
        if path in LEFT_OUT:
            continue
        answer = daemon.get(path)
        kind = answer.headers.get("content-type", "")
        yield f"GET {path}", f"{answer.status} {kind}\n{readable(kind, answer.text)}"


def printed(daemon: RunningDaemon) -> Iterator[tuple[str, str]]:
    """Yield each command line with what it prints, as text and as JSON."""
    for line in COMMANDS:
        for options in ([], ["--json"]):
            done = call_memwatch("--url", daemon.url, *options, *line.split())
            texts = (done.stdout.replace(daemon.url, "URL"), done.stderr.replace(daemon.url, "URL"))
            kind = "application/json" if options and texts[0][:1] in "{[" and texts[0] else "text"
            shown = readable(kind, texts[0]) if texts[0] else ""
            yield (
                " ".join(["memwatch", *options, line]),
                f"exit {done.returncode}\n{shown}{without_numbers(texts[1])}",
            )


def hosts() -> Iterator[tuple[str, Sequence[str]]]:
    for name in sorted(DESCRIPTIONS):
        yield f"demo-{name}", ("--demo", name, *SLOWLY)
    for name in FOLDERS:
        yield name, arguments_of(MACHINES / name)


def file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("_") + ".txt"


def write(folder: Path) -> int:
    """Write everything to `folder`, and return the number of files."""
    texts: dict[str, str] = {}
    for host, arguments in hosts():
        with tempfile.TemporaryDirectory() as scratch, running_daemon(Path(scratch), *arguments) as daemon:
            for name, text in (*answers(daemon), *printed(daemon)):
                texts[f"{host}/{file_name(name)}"] = text
    for page in sorted((ROOT / "docs/reference").glob("*.md")):
        texts[f"reference/{page.name}"] = page.read_text()
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return len(texts)


def of_commit(commit: str, folder: Path) -> None:
    """Write what the commit shows to `folder`, by its own version of this file."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", tree, commit], check=True)
        try:
            places = os.pathsep.join(str(tree / name) for name in ("daemon", "web", "tests"))
            command = [sys.executable, "-m", "scripts.surface", "--write", str(folder)]
            subprocess.run(command, check=True, cwd=tree, env={**os.environ, "PYTHONPATH": places})
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


def differences(old: Path, new: Path) -> Iterator[str]:
    """Yield the lines of a unified diff of all files of two folders."""
    names = sorted({str(file.relative_to(side)) for side in (old, new) for file in side.rglob("*.txt")} | {
        str(file.relative_to(side)) for side in (old, new) for file in side.rglob("*.md")})  # fmt: skip
    for name in names:
        before, after = (_lines(side / name) for side in (old, new))
        yield from difflib.unified_diff(before, after, f"before/{name}", f"now/{name}", n=0, lineterm="")


def _lines(file: Path) -> list[str]:
    return _COMMIT.sub("#", file.read_text()).splitlines() if file.exists() else []


def summarize(lines: Iterable[str]) -> str:
    files = sum(line.startswith("+++ ") for line in lines)
    return "no difference" if not files else f"{files} files differ; `out/surface.diff` has the lines"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="surface", description=(__doc__ or "").partition("\n")[0])
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--write", type=Path, metavar="FOLDER", help="write everything to this folder")
    choice.add_argument("--against", metavar="COMMIT", help="compare with this commit")
    chosen = parser.parse_args(arguments)
    if chosen.write:
        print(f"{write(chosen.write)} files in {chosen.write}")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        old, new = Path(scratch) / "old", Path(scratch) / "new"
        of_commit(chosen.against, old)
        write(new)
        found = list(differences(old, new))
    (ROOT / "out").mkdir(exist_ok=True)
    (ROOT / "out/surface.diff").write_text("\n".join(found) + "\n" if found else "")
    print("\n".join(found[:200]))
    print(summarize(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
