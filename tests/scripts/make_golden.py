"""Write the expected output of every simulated machine again: `make golden`, or `make golden CHECK=1`.

tests/machines/*/metrics.txt has the samples of /metrics, metrics_help.txt the HELP and TYPE lines of all machines.
expected.json has the findings of the collectors that it lists, and the report of a Jetson. The differences are
printed by metric and by collector, with the number of files. Review them before committing. With `--check` no file
is written, and the exit code is 1 if there is a difference.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import CollectorEntry, Host
from memwatch.core.linux.files import Roots, SourceUnavailable
from scripts.golden import HELP, RUN_HERE, by_family, golden_file, help_of, samples_of, stable_part
from scripts.machine_from_report import LEFT_OUT, results_of
from support.machine_exports import export_of
from support.machine_folders import NAMES
from support.paths import MACHINES

Json = Any
Texts = Mapping[Path, str]


def golden_texts() -> dict[Path, str]:
    """Return what each file has to contain."""
    expositions = {name: stable_part(export_of(name).metrics) for name in RUN_HERE}
    texts = {golden_file(name): samples_of(exposition) for name, exposition in expositions.items()}
    texts[HELP] = help_of(expositions.values())
    for name in NAMES:
        file = MACHINES / name / "expected.json"
        texts[file] = expected_json(name, json.loads(file.read_bytes()))
    return texts


def expected_json(name: str, written: Json) -> str:
    """Return expected.json with the results of this version for everything that it lists."""
    found = json.loads(json.dumps(results_of(MACHINES / name, written["page_size"])))
    reasons = reasons_of(MACHINES / name, written["page_size"])
    collectors = {
        collector: before if describes(before, reasons.get(collector, "")) else found.get(collector, before)
        for collector, before in written["collectors"].items()
    }
    report = {"report": report_of(export_of(name).json)} if "report" in written else {}
    new = written | {"collectors": collectors} | report
    return json.dumps(written if new == written else new, indent=1) + "\n"  # the order of keys is no difference


def reasons_of(folder: Path, page_size: int) -> dict[str, str]:
    """Return the reasons of the collectors that are unavailable."""
    host = Host(Roots(folder / "proc", folder / "sys", folder / "root"), platform="linux", page_size=page_size)
    return {entry.name: reason for entry in list_collectors(host, LEFT_OUT) if (reason := reason_of(entry))}


def reason_of(entry: CollectorEntry) -> str:
    try:
        entry.make().close()
    except SourceUnavailable as error:
        return str(error)
    return ""


def describes(expected: Json, reason: str) -> bool:
    """Return if the pattern in expected.json still describes the reason for which a collector is unavailable."""
    return bool(reason) and "unavailable" in expected and bool(re.search(expected["unavailable"], reason))


def report_of(snapshot: Json) -> Json:
    """Return the figures of a Jetson: one pool, one share and one GPU."""
    (pool,), (share,), (device,) = snapshot["pools"], snapshot["shares"], snapshot["devices"]
    return {
        **{figure: pool[figure] for figure in ("used_bytes", "available_bytes", "unattributed_bytes")},
        "cuda_pool_bytes": share["used_bytes"],
        **snapshot["tegrastats"],
        **{figure: device[figure] for figure in ("busy_ratio", "memory_busy_ratio")},
        "held_bytes": {
            str(one["pid"]): one["device_bytes"]["cuda0"] for one in snapshot["processes"] if one["device_bytes"]
        },
    }


def parts_of(file: Path, text: str) -> dict[str, Json]:
    """Return the parts of a file by which differences are counted: metric families, or collectors."""
    if file.suffix != ".json":
        return dict(by_family(text))
    written = json.loads(text or "{}")
    return {**written.get("collectors", {}), **({"report": written["report"]} if "report" in written else {})}


def differences(texts: Texts) -> Counter[str]:
    """Return the number of files with a difference, by metric or collector."""
    counts: Counter[str] = Counter()
    for file, text in texts.items():
        old, new = (parts_of(file, one) for one in (file.read_text() if file.exists() else "", text))
        counts.update(part for part in old.keys() | new.keys() if old.get(part) != new.get(part))
    return counts


def summarize(counts: Mapping[str, int], changed: int, total: int) -> list[str]:
    """Return a line for each metric or collector, that with the most files first, and a total."""
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    return [f"{name}: {count} files" for name, count in rows] + [f"{changed} of {total} files differ"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make_golden", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file differs")
    is_check = parser.parse_args(arguments).check
    texts = golden_texts()
    changed = [file for file, text in texts.items() if not file.exists() or file.read_text() != text]
    print("\n".join(summarize(differences(texts), len(changed), len(texts))))
    for file in changed if not is_check else ():
        file.write_text(texts[file])
    return int(is_check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
