"""Process with an outbox that is to be killed: `python -m support.outbox_child FOLDER URL`.

It forks a child for each line of its input.

A line has the first number to use and how many messages to put; with 0 the child puts none and exits when all are
delivered. Each child writes its pid, and the id of every message that is stored.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from memwatch_monitor.notify.outbox import NewMessage, Outbox
from memwatch_monitor.notify.queue import Kind
from memwatch_monitor.notify.sqlite_store import open_outbox
from support.webhook_samples import new_receiver, webhook_channel

LAST = "last"
BURST = 3
MAX_PENDING = 200


def body_of(number: int) -> bytes:
    return b'{"number":%d,"pad":"%s"}' % (number, b"x" * (number % 7) * 100)


def work(folder: Path, url: str, first: int, count: int) -> None:
    """Put messages in bursts, each with a value that names the last of them, and write their ids once stored."""
    opened = open_outbox(folder, time.time())
    for complaint in opened.complaints:
        report(f"complaint {complaint}")
    outbox = Outbox(opened.store, opened.stored)
    report(f"last {outbox.values.get(LAST, b'none').decode()}")
    made = new_receiver(webhook_channel(url, timeout_seconds=5.0), schedule=[0.0, *[0.02] * 100], outbox=outbox)
    made.start()
    for start in range(first, first + count, BURST):
        numbers = range(start, start + BURST)
        ids = [f"msg_{number}" for number in numbers]
        new_messages = [
            (made.receiver.queue, NewMessage(f"msg_{number}", f"fact {number}", Kind.FACT, body_of(number)))
            for number in numbers
        ]
        while made.pending() > MAX_PENDING:  # the outbox keeps at most a thousand
            time.sleep(0.005)
        outbox.put(new_messages, {LAST: ids[-1].encode()})
        if outbox.flush(5.0):
            report(*(f"kept {its_id}" for its_id in ids))
    while made.pending():
        time.sleep(0.01)
    outbox.flush(5.0)
    made.close()
    report("drained")


def report(*lines: str) -> None:
    """Write all lines in one call or none: a pipe accepts few bytes atomically."""
    os.write(1, "".join(f"{line}\n" for line in lines).encode())


def main(folder: Path, url: str) -> None:
    report("ready")
    for line in sys.stdin:
        first, count = map(int, line.split())
        pid = os.fork()
        if pid == 0:
            report(f"pid {os.getpid()}")
            work(folder, url, first, count)
            os._exit(0)
        os.waitpid(pid, 0)
        report("dead")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
