"""Take memory: python3 hog.py NAME MIB SECONDS [touch]. With `touch` all of it stays in use."""

import sys
import time

STEPS = 20


def main() -> None:
    name, size, seconds = sys.argv[1], int(sys.argv[2]) << 20, float(sys.argv[3])
    with open("/proc/self/comm", "w") as comm:
        comm.write(name)
    held = []
    for _ in range(STEPS):
        held.append(bytearray(b"x") * (size // STEPS))
        time.sleep(seconds / STEPS)
    while True:
        if len(sys.argv) > 4:
            for part in held:
                part[::4096] = b"y" * len(part[::4096])
        time.sleep(0.01 if len(sys.argv) > 4 else 3600)


main()
