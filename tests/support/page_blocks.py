"""Run the blocks of a page as a reader does, in one folder, against a daemon; check those that cannot be run."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from memwatch.cli.cli import memwatch
from memwatchd.cli import command_line
from support.checkpoint_files import safetensors
from support.daemon_process import MEMWATCHD, RunningDaemon, clean_environment, running_daemon
from support.free_ports import free_port
from support.installed_share import DATA, DOCUMENTS, is_installed
from support.pages import Fence
from support.paths import ROOT
from support.waiting import MAX_WAIT_SECONDS

RUN_LANGUAGES = frozenset({"sh", "python"})
# The daemon of pages, and a receiver that a page writes.
DAEMON_PORT, RECEIVER_PORT = 6360, 8099
TRAIN = "print('trained')\n"
CONFIG = (
    '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,'
    ' "num_hidden_layers": 2, "vocab_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,'
    ' "torch_dtype": "bfloat16"}\n'
)
# Folders that the package fills, and where their files come from.
PACKAGED = {
    "/usr/lib/systemd/system/": "systemd/",
    "/lib/systemd/system/": "systemd/",
}
SHARE = Path("/usr/share")
_REPOSITORY_PATH = re.compile(r"(?<![\w/.-])(?:\./)?((?:daemon|web|tests|deploy|systemd|docs)/[\w./-]*\w)")
_ASSIGNMENT = re.compile(r"\w+=")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_PREFIXES = frozenset({"sudo", "env", "exec", "time", "nohup"})
_SEPARATORS = frozenset({";", "|", "||", "&", "&&", "(", ")", "{", "}", "|&", ";;"})


class BlockError(AssertionError):
    """A block of a page failed, or names something that does not exist."""


class PageRun:
    """One page's folder and daemon. The blocks run in order; background blocks are stopped by `close`."""

    def __init__(self, folder: Path, daemon: RunningDaemon) -> None:
        self._folder = folder
        self._ports = {DAEMON_PORT: daemon.port, RECEIVER_PORT: free_port()}
        self._background: list[tuple[Fence, subprocess.Popen[bytes]]] = []
        prepare(folder)

    def run(self, fence: Fence) -> None:
        """Run a block to its end; raise BlockError with its output if its exit code is not 0."""
        done = subprocess.run(
            self._command(fence),
            cwd=self._folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MAX_WAIT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise BlockError(f"line {fence.line}: exit code {done.returncode}\n{done.stdout}{done.stderr}")

    def start(self, fence: Fence) -> None:
        """Start a background block and wait until it listens: a daemon replacing the page's, or a receiver."""
        replaces_daemon = "memwatchd" in fence.code and str(RECEIVER_PORT) not in fence.code
        port = DAEMON_PORT if replaces_daemon else RECEIVER_PORT
        self._ports[port] = free_port()
        listen = {"MEMWATCHD_LISTEN": f"127.0.0.1:{self._ports[port]}"} if replaces_daemon else {}
        with (self._folder / f"line-{fence.line}.log").open("wb") as log:
            process = subprocess.Popen(
                self._command(fence),
                cwd=self._folder,
                env={**self._environment(), **listen},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._background.append((fence, process))
        until = time.monotonic() + MAX_WAIT_SECONDS
        while not answers(self._ports[port]):
            self._refuse_ended()
            if time.monotonic() > until:
                raise BlockError(f"line {fence.line}: nothing listens at port {self._ports[port]}")
            time.sleep(0.05)

    @property
    def port(self) -> int:
        """Port of the page's daemon."""
        return self._ports[DAEMON_PORT]

    def close(self) -> None:
        """Stop background blocks; raise BlockError if one has ended by itself."""
        try:
            self._refuse_ended()
        finally:
            for _, process in self._background:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
                    process.wait(MAX_WAIT_SECONDS)

    def _refuse_ended(self) -> None:
        for fence, process in self._background:
            if process.poll() is not None:
                log = (self._folder / f"line-{fence.line}.log").read_text()
                raise BlockError(f"line {fence.line}: ended with {process.returncode}\n{log}")

    def _command(self, fence: Fence) -> Sequence[str]:
        code = self._with_ports(fence.code)
        if fence.language == "python":
            return [sys.executable, "-W", "error", "-c", code]
        return ["bash", "-euo", "pipefail", "-c", code]

    def _with_ports(self, code: str) -> str:
        for port, real in self._ports.items():
            code = re.sub(rf"\b{port}\b", str(real), code)
        return code

    def _environment(self) -> Mapping[str, str]:
        programs = f"{self._folder / 'bin'}:{Path(MEMWATCHD).parent}"
        return clean_environment(
            HOME=str(self._folder),
            PATH=f"{programs}:{os.environ['PATH']}",
            MEMWATCH_URL=f"http://127.0.0.1:{self._ports[DAEMON_PORT]}",
        )


@contextmanager
def page_run(folder: Path, is_live: bool) -> Iterator[PageRun]:
    """Start the daemon of a page: a simulated machine, or this one if the page asks for it."""
    home, state = folder / "home", folder / "daemon"
    home.mkdir()
    state.mkdir()
    arguments = () if is_live else ("--demo", "dgx-spark", "--at", "0s")
    with running_daemon(state, *arguments) as daemon, ExitStack() as stack:
        run = PageRun(home, daemon)
        stack.callback(run.close)
        yield run


def prepare(folder: Path) -> None:
    """Create the files that pages name without creating them, and a curl that fails with the answer."""
    (folder / "train.py").write_text(TRAIN)
    model = folder / "Mistral-7B"
    model.mkdir()
    (model / "config.json").write_text(CONFIG)
    safetensors(model / "model.safetensors", {"model.embed_tokens.weight": ("BF16", [256, 417])})
    programs = folder / "bin"
    programs.mkdir()
    curl = programs / "curl"
    # A block that prints the status shows it, for any status.
    strict = 'case "$*" in *http_code*) ;; *) set -- --fail --show-error "$@" ;; esac'
    curl.write_text(f'#!/bin/sh\n{strict}\nPATH=${{PATH#{programs}:}} exec curl "$@"\n')
    curl.chmod(0o755)


def answers(port: int) -> bool:
    """Return if something accepts connections at a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def check_shell(code: str) -> None:
    """Check a block that is not run: its syntax, options of our commands, make targets, and paths that it names."""
    check_syntax(code)
    check_names_in_shell(code)


def check_syntax(code: str) -> None:
    """Raise BlockError if bash rejects the syntax, or warns of a here-document without an end."""
    syntax = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True, check=False)
    if syntax.returncode or syntax.stderr:
        raise BlockError(f"bash: {syntax.stderr}")


def check_names_in_shell(code: str) -> None:
    """Raise BlockError for an option, make target or path that does not exist."""
    for words in commands_in(code):
        check_command(words)
    for path in _REPOSITORY_PATH.findall(code):
        if not (ROOT / path).exists():
            raise BlockError(f"there is no {path} in the repository")
    for word in (one.strip("'\"") for one in code.split()):
        is_ours = word.startswith((f"{SHARE / DATA}", f"{SHARE / DOCUMENTS}"))
        if is_ours and not is_installed(Path(word).relative_to(SHARE)):
            raise BlockError(f"the package has no {word}")
        for folder, source in PACKAGED.items():
            name = word.removeprefix(folder)
            if word.startswith(folder) and name and not (ROOT / source / name).exists():
                raise BlockError(f"the package has no {word}")


def commands_in(code: str) -> Iterator[list[str]]:
    """Yield the words of each simple command, without assignments, redirections, and prefixes such as sudo."""
    for line in logical_lines(code):
        reader = shlex.shlex(line, posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        words: list[str] = []
        for word in [*reader, ";"]:
            if word in _SEPARATORS:
                if words:
                    yield words
                words = []
            elif words or not (word in _PREFIXES or _ASSIGNMENT.match(word) or word.startswith("-")):
                words.append(word)


def logical_lines(code: str) -> Iterator[str]:
    """Yield lines, joined if a quote or a backslash continues one, without here-documents."""
    pending, ending = "", ""
    for line in code.splitlines():
        if ending:
            ending = "" if line.strip() == ending else ending
            continue
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        try:
            shlex.split(pending, comments=True)
        except ValueError:
            pending += "\n"
            continue
        if document := _HEREDOC.search(pending):
            ending = document[1]
        yield pending
        pending = ""


def check_command(words: Sequence[str]) -> None:
    """Check the options of memwatchd and memwatch, and the targets of make; other commands pass."""
    program = words[0].rpartition("/")[2]
    if program == "make":
        targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        for word in words[1:]:
            if not word.startswith("-") and "=" not in word and word not in targets:
                raise BlockError(f"make has no target {word}")
    elif program == "memwatchd":
        check_options(words[1:], command_line(), "memwatchd")
    elif program == "memwatch":
        check_client(words[1:])


def check_client(words: Sequence[str]) -> None:
    """Check the options before the name of a command of memwatch, the name, and its options."""
    known = options_of(memwatch)
    position = 0
    while position < len(words) and words[position].startswith("-"):
        check_options(words[position : position + 1], memwatch, "memwatch")
        takes_value = known[words[position].partition("=")[0]] and "=" not in words[position]
        position += 1 + takes_value
    if position == len(words):
        return
    command = memwatch.get_command(click.Context(memwatch), words[position])
    if command is None:
        raise BlockError(f"memwatch has no command {words[position]}")
    check_options(words[position + 1 :], command, f"memwatch {words[position]}")


def options_of(command: click.Command) -> Mapping[str, bool]:
    """Return the options of a command, and for each if it takes a value."""
    context = click.Context(command, help_option_names=["--help"])
    options = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    return {name: not one.is_flag and not one.count for one in options for name in one.opts + one.secondary_opts}


def check_options(words: Sequence[str], command: click.Command, name: str) -> None:
    """Raise BlockError for an unknown option; words after `--` belong to another program."""
    known = options_of(command)
    for word in words:
        if word == "--":
            return
        if word.startswith("-") and word.partition("=")[0] not in known:
            raise BlockError(f"{name} has no option {word}")


def console_commands(code: str) -> str:
    """Return the commands of a terminal sample: text after `$ ` or `# ` at the start of a line."""
    return "\n".join(line[2:] for line in code.splitlines() if line.startswith(("$ ", "# ")))
