"""A machine with a process that names one path in every way that a process can, and the files put there."""

from __future__ import annotations

import os
from pathlib import Path

from support.checkpoint_files import safetensors
from support.process_folders import add_process, stat_line

PID, SERVER = 4242, 60_000  # the uid is neither that of root nor of the tests
TRAP = "/trap"
NAMED = f"{TRAP}/model.safetensors"
TENSORS = {"layer": ("I8", [4321])}
# What may be at the path. The owner of the daemon may read each of them, SERVER none.
KINDS = ("secret", "group", "folder", "pipe", "device", "link", "socket")
_FILES = ("model.safetensors", "config.json", "libcuda.so.1", "exe", "dev/dri/renderD128", "memory.current",
          "cgroup.procs", "hosts", "vllm", "tegrastats", "rocm-smi")  # fmt: skip


def add_trap(machine: Path) -> Path:
    """Add a process that names TRAP below the root of a machine's folder. Return the folder that it leads to."""
    proc, root = machine / "proc", machine / "root"
    for path in (machine.parent, machine, proc, root):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(path.stat().st_mode | 0o755)
    ids = f"\t{SERVER}" * 4
    words = ["/trap/vllm", "serve", NAMED, "--model", NAMED, "--tokenizer", TRAP, f"--lora-modules=a={NAMED}"]
    environ = [
        f"{name}={TRAP}" for name in ("HOME", "HF_HOME", "PATH", "LD_LIBRARY_PATH", "ROCM_PATH", "container")
    ]
    add_process(
        proc,
        stat_line(PID, "vllm", rss=1 << 19),
        status=f"Name:\tvllm\nUid:{ids}\nGid:{ids}\nGroups:\t\n".encode(),
        statm=b"9999999 524288 3 1 0 40 0\n",
        cgroup=f"0::/../../..{TRAP}\n1:memory:/../../..{TRAP}\n".encode(),
        cmdline=b"".join(word.encode() + b"\0" for word in words),
        environ=b"".join(word.encode() + b"\0" for word in environ),
        maps=f"7f0000000000-7f0000001000 r-xp 00000000 08:01 77 {TRAP}/libcuda.so.1\n".encode(),
        mountinfo=f"21 1 8:1 {TRAP} / rw - ext4 /dev/sda1 rw\n22 21 0:9 / {TRAP} rw - cgroup2 cgroup rw\n".encode(),
    )
    folder = proc / str(PID)
    for name, target in (("cwd", TRAP), ("exe", f"{TRAP}/exe"), ("root", "/")):
        (folder / name).symlink_to(target)
    (folder / "fd").mkdir()
    (folder / "fdinfo").mkdir()
    for number, name in enumerate(_FILES, 3):
        (folder / f"fd/{number}").symlink_to(f"{TRAP}/{name}")
        (folder / f"fdinfo/{number}").write_text("pos:\t0\nflags:\t02\n")
    (root / "etc").mkdir(exist_ok=True)
    with (root / "etc/passwd").open("a") as passwd:
        passwd.write(f"server:x:{SERVER}:{SERVER}::{TRAP}:{TRAP}/exe\n")
    return root / TRAP.lstrip("/")


def fill_trap(trap: Path, kind: str) -> None:
    """Put files of one kind where the process leads, each with content that a reader would report."""
    for name in _FILES:
        path = trap / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _make(path, kind)
    for folder in (trap, trap / "dev", trap / "dev/dri"):
        folder.chmod(0o700 if kind == "folder" else 0o755)


def _make(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path, 0o644)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        os.mknod(path, 0o140644)
    elif kind == "link":
        hidden = path.with_name(f".{path.name}")
        _write(hidden).chmod(0o600)
        path.symlink_to(hidden.name)
    else:
        _write(path).chmod({"secret": 0o600, "group": 0o640, "folder": 0o644}[kind])


def _write(path: Path) -> Path:
    if path.suffix == ".safetensors":
        return safetensors(path, TENSORS)
    path.write_text('{"max_position_embeddings": 4321}\n')
    return path
