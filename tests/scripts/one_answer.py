"""Compare all surfaces on all committed machines, and on generated ones.

    PYTHONPATH=tests python -m scripts.one_answer [--count 1000] [--first SEED]

Prints the number of compared figures by surface. Exits with 1 if two surfaces disagree, if one does not show a
figure that is not in tests/not_shown.toml, or if an entry there is not needed any more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from scripts.golden import RUN_HERE
from support.one_answer import complaints, read_table
from support.one_answer_runs import committed, compare, generated


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="number of generated machines")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    given = parser.parse_args(arguments)
    table = read_table()
    known, drawn = compare(committed(RUN_HERE)), compare(generated(range(given.first, given.first + given.count)))
    for machines, found in ((f"{len(RUN_HERE)} committed", known), (f"{given.count} generated", drawn)):
        print(f"{found.compared.total():,} figures of {machines} machines: ", end="")
        print(", ".join(f"{surface} {count:,}" for surface, count in found.compared.most_common()))
    wrong = [*complaints(known, table, every=True), *complaints(drawn, table, every=False)]
    for text in wrong:
        print(f"VIOLATION: {text}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
