"""Innocent programs beside a collapse: python3 innocent.py database | login.

`database` commits to a file and reads its cache all the time. `login` answers on a port, as sshd does.
"""

from __future__ import annotations

import socketserver
import sqlite3
import sys
import time
from pathlib import Path

CACHE_BYTES = 96 << 20
PORT = 2222
PAUSE_SECONDS = 0.5


class Banner(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(b"login:\n")


def keep_database() -> None:
    cache = bytearray(b"x") * CACHE_BYTES
    database = sqlite3.connect("/root/database")
    database.execute("CREATE TABLE IF NOT EXISTS rows (at REAL, text TEXT)")
    at = 0
    while True:
        database.execute("INSERT INTO rows VALUES (?, ?)", (time.time(), "x" * 500))
        database.commit()
        for _ in range(200):
            at = (at + 4096 * 37) % CACHE_BYTES
            cache[at] ^= 1
        time.sleep(PAUSE_SECONDS)


def main() -> None:
    name = sys.argv[1]
    Path("/proc/self/comm").write_text(name)
    if name == "database":
        keep_database()
    with socketserver.TCPServer(("127.0.0.1", PORT), Banner) as server:
        server.serve_forever()


main()
