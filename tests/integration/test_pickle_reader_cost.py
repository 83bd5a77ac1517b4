"""CPU time and memory that the largest hostile pickles take."""

from __future__ import annotations

import subprocess
import sys


def test_largest_hostile_files_take_seconds_and_little_memory() -> None:
    """In a separate process, as the peak never falls. Its ru_maxrss would begin at the parent's.

    The limits are above what was measured: 3 s and 170 MiB.
    """
    program = (
        "import io, sys, time\n"
        "from memwatch.training.pickle_reader import PickleReader, PickleRefusedError\n"
        "for part in (b'J\\1\\2\\3\\4', b'\\x8c\\x02ab\\x94'):\n"
        "    try:\n"
        "        PickleReader(io.BytesIO(part * 4_000_000)).read()\n"
        "        sys.exit('read')\n"
        "    except PickleRefusedError:\n"
        "        continue\n"
        "status = open('/proc/self/status').read()\n"
        "print(time.process_time(), int(status.partition('VmHWM:')[2].split()[0]) >> 10)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seconds, mebibytes = done.stdout.split()

    assert float(seconds) < 30
    assert int(mebibytes) < 300
