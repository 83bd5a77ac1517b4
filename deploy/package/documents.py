"""Documents of the Debian package: copyright (DEP 5), changelog, and the exceptions for lintian."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from email.utils import formatdate
from pathlib import Path

from packaging.utils import canonicalize_name

from sbom import read_licence, read_metadata

MAINTAINER = "The memwatchd authors <memwatchd@localhost>"
HEAD = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: memwatchd

Files: *
Copyright: The memwatchd authors
License: Apache-2.0

License: Apache-2.0
 The full text is in /usr/share/common-licenses/Apache-2.0.
"""
OVERRIDES = """# Unchanged files of the wheels, whose hashes are in the SBOM.
memwatchd: embedded-library * [usr/lib/memwatchd/wheels/*]
memwatchd: unstripped-binary-or-object [usr/lib/memwatchd/wheels/*]
memwatchd: unusual-interpreter * [usr/lib/memwatchd/wheels/*]
# The interpreter of the virtual environment with these wheels, a link to /usr/bin/python3.
memwatchd: wrong-path-for-interpreter /usr/lib/memwatchd/bin/python3 != /usr/bin/python3 [usr/bin/*]
"""
CHANGELOG = """memwatchd ({version}) unstable; urgency=medium

  * Built from revision {revision}.
    Changes: /usr/share/doc/memwatchd/CHANGELOG.md

 -- {maintainer}  {date}
"""


def compress(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 9, mtime=0))


def read_holders(unpacked: Path) -> list[str]:
    """Return the copyright notices of a wheel's licence files, or its author."""
    files = [one for one in unpacked.glob("*.dist-info/**/*") if re.search("LICEN|COPY|NOTICE", one.name.upper())]
    texts = (one.read_text("utf-8", "replace") for one in sorted(files) if one.is_file())
    notices = [line.strip(" #*\t") for text in texts for line in text.splitlines()]
    found = [line for line in notices if re.match(r"(?i)copyright (\(c\)|©|\d{4}|-)", line)]
    metadata = read_metadata(unpacked)
    return list(dict.fromkeys(found)) or [f"{metadata['Author'] or metadata['Author-email']}"]


def copyright_stanzas(wheels: Iterable[Path]) -> Iterator[str]:
    """Yield a stanza for the wheels of each distribution that is not ours, and one for each licence."""
    by_name: dict[str, list[Path]] = {}
    for unpacked in sorted(wheels):
        by_name.setdefault(canonicalize_name(read_metadata(unpacked)["Name"]), []).append(unpacked)
    texts: dict[str, str] = {}
    for name, folders in sorted(by_name.items()):
        if name in ("memwatch", "memwatchd"):
            continue
        licence = re.sub(r"[^\w.+-]+", "-", read_licence(read_metadata(folders[0])) or "unknown")
        files = "\n ".join(f"usr/lib/memwatchd/wheels/{one.name}/*" for one in folders)
        holders = "\n ".join(dict.fromkeys(line for one in folders for line in read_holders(one)))
        yield f"Files: {files}\nCopyright: {holders}\nLicense: {licence}\n"
        texts.setdefault(licence, folders[0].name)
    for licence, folder in sorted(texts.items()):
        if licence != "Apache-2.0":
            yield f"License: {licence}\n The text is in /usr/lib/memwatchd/wheels/{folder}/*.dist-info.\n"


def write_documents(tree: Path, wheels: Iterable[Path], version: str, revision: str, moment: int) -> None:
    documents = tree / "usr/share/doc/memwatchd"
    documents.mkdir(parents=True, exist_ok=True)
    (documents / "copyright").write_text("\n".join([HEAD, *copyright_stanzas(wheels)]))
    date = formatdate(moment)
    text = CHANGELOG.format(version=version, revision=revision, maintainer=MAINTAINER, date=date)
    compress(documents / "changelog.gz", text.encode())
    overrides = tree / "usr/share/lintian/overrides/memwatchd"
    overrides.parent.mkdir(parents=True)
    overrides.write_text(OVERRIDES)
