"""Start a program with a socket as descriptor 3, as systemd does: by activation, or from its store."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def passed_socket(folder: Path, passed: socket.socket, name: str) -> Iterator[list[str]]:
    """Yield a prefix of a command, which then gets a copy of the socket under this name."""
    path = folder / f"handover-{passed.fileno()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=_hand_over, args=(listener, passed), daemon=True)
        thread.start()
        yield [sys.executable, __file__, str(path), name]
        listener.shutdown(socket.SHUT_RDWR)  # ends accept
        thread.join()


def _hand_over(listener: socket.socket, passed: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            socket.send_fds(connection, [b"."], [passed.fileno()])


def main(path: str, name: str, *command: str) -> None:
    """Replace this process by the command."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        _, (descriptor,), *_ = socket.recv_fds(connection, 1, 1)
    os.dup2(descriptor, 3)
    os.set_inheritable(3, True)  # dup2 changes nothing if it is 3 already
    os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": name}
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
