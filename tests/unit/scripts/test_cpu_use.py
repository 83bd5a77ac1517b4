"""The sum of a run's CPU seconds. Measuring them is tested with the process lane."""

from __future__ import annotations

from support.cpu_use import REST, CpuUse, summarize


def test_summary_names_the_sum_and_the_most_expensive_files() -> None:
    use = CpuUse()
    use.add(REST, 9.0, 8.0)
    use.add("tests/a/test_one.py", 2.0, 0.5)
    use.add("tests/test_two.py", 3.25, 1.0)
    use.add("tests/a/test_one.py", 4.0, 0.5)  # another worker ran the rest of it

    assert summarize(use) == [
        "CPU: 18 s in 2 files; 10 s of the workers themselves, 9 s of their start, collection and end",
        "most: test_one 6.0, test_two 3.2",
    ]
