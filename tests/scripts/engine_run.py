"""Compare the KV cache and weights of a running llama-server with what it logs.

    make test-llama-server LLAMA_SERVER=/usr/bin/llama-server

The model has random weights. The collector finds the server by its process and asks it, as memwatchd does.
llama.cpp logs its buffers in MiB with two decimals.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from memwatch.core.collectors.engines import Collector
from memwatch.core.engines.records import Engine
from memwatch.core.linux.files import Roots
from memwatch.planning.served import ServedModels
from support.free_ports import free_port
from support.written_models import random_weights, write_gguf

# "llama_kv_cache: size =    6.00 MiB (  4096 cells, …". The first context is a trial, to fit the model into memory.
CACHE = re.compile(r"llama_kv_cache: +size = +([0-9.]+) MiB")
# Options, and how many slots share or divide the context.
VARIANTS: tuple[tuple[str, ...], ...] = (
    ("-c", "4096"),
    ("-c", "4096", "-np", "1"),
    ("-c", "4096", "-np", "4"),
    ("-c", "4096", "-np", "4", "--kv-unified"),
    ("-c", "2048", "-np", "2", "-ctk", "f32", "-ctv", "f32"),
)
MAX_DIFFERENCE = 0.03
START_SECONDS = 60.0


def ask(pid: int) -> Engine | None:
    """Return the server as the collector sees it, None until its model is loaded."""
    collector = Collector(Roots(), size_model=ServedModels().size)
    try:
        found = [one for one in collector.collect().engines if one.pid == pid]
    finally:
        collector.close()
    return found[0] if found and isinstance(found[0].kv_cache_bytes, int) else None


def logged_mib(log: IO[bytes]) -> float:
    log.seek(0)
    return float(CACHE.findall(log.read().decode("utf-8", "replace"))[-1])


def measure(server: str, model: Path, options: Sequence[str]) -> tuple[Engine, float]:
    """Start a server, and return its record and the MiB of the cache in its log."""
    command = [server, "-m", str(model), "--port", str(free_port()), "--metrics", "--no-webui", "-v", *options]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            until = time.monotonic() + START_SECONDS
            while (engine := ask(process.pid)) is None:
                log.seek(0)
                text = log.read().decode("utf-8", "replace")[-4000:]
                assert process.poll() is None, text
                assert time.monotonic() < until, text
                time.sleep(0.5)
            return engine, logged_mib(log)
        finally:
            process.terminate()


def main() -> None:
    (server,) = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        model = write_gguf(Path(folder) / "tiny.gguf", random_weights(), "F16")
        for options in VARIANTS:
            engine, mib = measure(server, model, options)
            assert isinstance(engine.kv_cache_bytes, int)
            ours = engine.kv_cache_bytes / (1 << 20)
            print(
                f"{' '.join(options)}: {engine.version}, cache {ours:.2f} MiB, logged {mib:.2f} MiB; "
                f"weights {engine.weights_bytes} bytes, {engine.requests_running} requests"
            )
            assert mib, "the log has no line of the KV cache"
            assert abs(ours - mib) <= MAX_DIFFERENCE * mib


if __name__ == "__main__":
    main()
