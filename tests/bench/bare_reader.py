"""Baseline: read the files of a tick once a second and do nothing with them."""

import os
import time

FILES = ("/proc/meminfo", "/proc/pressure/memory", "/proc/vmstat", "/proc/buddyinfo")


def main() -> None:
    descriptors = [os.open(name, os.O_RDONLY) for name in FILES if os.path.exists(name)]
    while True:
        for one in descriptors:
            os.pread(one, 8192, 0)
        time.sleep(1)


if __name__ == "__main__":
    main()
