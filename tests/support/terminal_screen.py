"""A program in a pseudo terminal of a given size, and the screen that it draws."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.fork_server import PROGRAMS, ForkedProcess, can_fork, fork_server
from support.waiting import MAX_WAIT_SECONDS

SEQUENCE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])")
PARTIAL = re.compile(r"\x1b(\[[?0-9;]*)?\Z")


class TerminalScreen:
    """The characters and styles on a screen. Fails at an escape sequence that it does not know."""

    def __init__(self, width: int, height: int) -> None:
        self.modes: set[str] = set()
        self.style = ""
        self._rest = ""
        # What a program on the whole screen writes for another size, until it draws all of it.
        self.is_for_other_size: bool = False
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.row = self.column = 0
        self.chars = [[" "] * width for _ in range(height)]
        self.styles = [[""] * width for _ in range(height)]

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.chars]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def style_of(self, words: str) -> str:
        """Return the style of the first character of `words` on the screen."""
        row = next(number for number, line in enumerate(self.lines) if words in line)
        return self.styles[row][self.lines[row].index(words)]

    def feed(self, text: str) -> None:
        text, at = self._rest + text, 0
        self._rest = ""
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
            elif found := SEQUENCE.match(text, at):
                self._run(*found.groups())
                at = found.end()
            else:
                assert PARTIAL.match(text, at), f"unknown sequence {text[at : at + 12]!r}"
                self._rest = text[at:]
                return

    def _put(self, char: str) -> None:
        if self.is_for_other_size and "1049" in self.modes:
            return
        if char == "\n":
            self.row = min(self.row + 1, self.height - 1)
        elif char == "\r":
            self.column = 0
        else:
            assert char.isprintable(), f"unknown character {char!r}"
            if self.column == self.width and "1049" not in self.modes:  # the main screen wraps lines
                self.row, self.column = min(self.row + 1, self.height - 1), 0
            assert self.column < self.width, f"the line is too long: {''.join(self.chars[self.row])}"
            self.chars[self.row][self.column] = char
            self.styles[self.row][self.column] = self.style
            self.column += 1

    def _run(self, private: str, numbers: str, final: str) -> None:
        if private:
            assert final in "hl"
            (self.modes.add if final == "h" else self.modes.discard)(numbers)
        elif final == "H":
            self.row, self.column = (int(one) - 1 for one in (numbers or "1;1").split(";"))
        elif final == "J":
            self.resize(self.width, self.height)
            self.is_for_other_size = False
        elif self.is_for_other_size:
            return
        elif final == "K":
            self.chars[self.row][self.column :] = [" "] * (self.width - self.column)
            self.styles[self.row][self.column :] = [""] * (self.width - self.column)
        else:
            assert final == "m", f"unknown sequence {numbers}{final}"
            self.style = "" if numbers in ("", "0") else numbers


class TerminalProgram:
    """A running program and its screen."""

    def __init__(self, process: ForkedProcess | InstalledProgram, descriptor: int, screen: TerminalScreen) -> None:
        self.process, self.pid, self.descriptor, self.screen = process, process.pid, descriptor, screen
        self.written = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.status: int | None = None

    def send(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def resize(self, width: int, height: int) -> None:
        self.screen.resize(width, height)
        self.screen.is_for_other_size = True
        _set_size(self.descriptor, width, height)
        os.kill(self.pid, signal.SIGWINCH)

    def read(self, seconds: float) -> bool:
        """Read what the program writes within a time. False at its end."""
        ready, _, _ = select.select([self.descriptor], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.descriptor, 1 << 16)
        except OSError:  # Linux: EIO when the program has closed the terminal
            data = b""
        self.written += data
        self.screen.feed(self._decoder.decode(data))
        return bool(data)

    def wait_for(self, is_shown: Callable[[str], bool] | str, seconds: float = MAX_WAIT_SECONDS) -> str:
        """Read until a text is on the screen. Return the screen."""
        wanted = (lambda text: is_shown in text) if isinstance(is_shown, str) else is_shown
        until = time.monotonic() + seconds
        while not wanted(self.screen.text):
            assert time.monotonic() < until, f"not shown: {is_shown}\n{self.screen.text}"
            assert self.read(0.05), f"ended before it showed {is_shown}\n{self.screen.text}"
        return self.screen.text

    def end(self) -> int:
        """Read to the end. Return the exit code, or minus the signal."""
        until = time.monotonic() + MAX_WAIT_SECONDS
        while self.read(0.05):
            assert time.monotonic() < until, f"did not end\n{self.screen.text}"
        self.status = self.process.wait(MAX_WAIT_SECONDS)
        return self.status

    def is_stopped(self) -> bool:
        """Return if a signal has stopped the program."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def terminal_flags(self) -> Sequence[object]:
        return termios.tcgetattr(self.descriptor)


class InstalledProgram:
    """Program that replaces a fork of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self, _timeout: float | None = None) -> int:
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


@contextmanager
def in_terminal(
    command: Sequence[str], width: int, height: int, environ: Mapping[str, str]
) -> Iterator[TerminalProgram]:
    """Run a command in a pseudo terminal, and kill it at the end if it still runs. `memwatch` is forked."""
    is_forked = Path(command[0]).name in PROGRAMS and can_fork(environ)
    process, descriptor = (_start_forked if is_forked else _start_installed)(command, width, height, environ)
    program = TerminalProgram(process, descriptor, TerminalScreen(width, height))
    try:
        yield program
    finally:
        if program.status is None:
            os.kill(program.pid, signal.SIGKILL)
            process.wait(MAX_WAIT_SECONDS)
        os.close(descriptor)


def _start_forked(
    command: Sequence[str], width: int, height: int, environ: Mapping[str, str]
) -> tuple[ForkedProcess, int]:
    descriptor, terminal = pty.openpty()
    _set_size(terminal, width, height)
    process = fork_server().start_in_terminal(command, environ, terminal)
    os.close(terminal)
    return process, descriptor


def _start_installed(
    command: Sequence[str], width: int, height: int, environ: Mapping[str, str]
) -> tuple[InstalledProgram, int]:
    pid, descriptor = pty.fork()
    if pid == 0:  # the child: nothing may run here before exec
        _set_size(0, width, height)
        os.execve(command[0], list(command), dict(environ))
    return InstalledProgram(pid), descriptor


def _set_size(terminal: int, width: int, height: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
