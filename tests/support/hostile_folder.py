"""Folder whose Python modules record who imports them, as a working directory that another user prepared.

folder = HostileFolder.of(tmp_path)
subprocess.run([...], cwd=folder.path)
assert folder.imports() == []
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

# Modules that the daemon, its helpers or Python itself import.
MODULES = (
    *("argparse", "json", "ctypes", "msgspec", "memwatch", "memwatchd", "click", "signal", "importlib", "logging"),
    *("memwatch_monitor", "memwatch_web"),
    *("collections", "pathlib", "runpy", "pynvml", "pyopencl", "amdsmi", "Metal", "sitecustomize", "usercustomize"),
)
SOURCE = "import sys\nopen({marker!r}, 'a').write(f'{{__name__}} {{sys.orig_argv}}\\n')\n"


class HostileFolder(Struct, frozen=True):
    path: Path

    @classmethod
    def of(cls, folder: Path) -> HostileFolder:
        found = cls(folder / "hostile")
        found.path.mkdir()
        source = SOURCE.format(marker=str(found.path / "imports"))
        for name in MODULES:
            (found.path / f"{name}.py").write_text(source)
        (found.path / "ctypes.py").rename(found.path / "ctypes_")
        (found.path / "ctypes").mkdir()
        (found.path / "ctypes_").rename(found.path / "ctypes" / "__init__.py")
        return found

    @property
    def through(self) -> list[str]:
        """Return the prefix of a command that is to run here."""
        return ["env", "--chdir", str(self.path)]

    def imports(self) -> list[str]:
        marker = self.path / "imports"
        return marker.read_text().splitlines() if marker.exists() else []
