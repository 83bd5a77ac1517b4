"""In place of AMD's library: what it says stands in a file of JSON, read at every call; noise included.

`AMDSMI_SIM` names the file: {"import": "KeyError", "init": 34, "gpus": {"0000:03:00.0": {"ecc": 2, …}}}. A number
in the place of an answer is the library's code for refusing it. Every call is written to the file `calls` beside.
"""

from __future__ import annotations

import builtins
import json
import os
from pathlib import Path
from typing import Any

FILE = Path(os.environ["AMDSMI_SIM"])


class AmdSmiLibraryException(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"Error code: {code}")
        self.err_code = abs(code)


def state(key: str, default: Any) -> Any:
    return json.loads(FILE.read_text()).get(key, default)


def noise(call: str) -> None:
    """The real one prints on both, from Python and from C++."""
    print(f"noise of {call}", flush=True)
    os.write(1, b"C++ noise on stdout\n")
    os.write(2, b"Exception caught: rsmi_init.\n")
    with FILE.with_name("calls").open("a") as calls:
        calls.write(call + "\n")


def answer(handle: str, question: str) -> Any:
    noise(f"{question} {handle}")
    said = state("gpus", {})[handle].get(question, 2)
    if isinstance(said, int):
        raise AmdSmiLibraryException(said)
    if said == "hang":
        while True:
            os.read(os.pipe()[0], 1)
    return said


def amdsmi_init() -> None:
    noise("init")
    code = state("init", 0)
    if code:
        raise AmdSmiLibraryException(code)


def amdsmi_get_processor_handles() -> list[str]:
    noise("handles")
    return list(state("gpus", {}))


def amdsmi_get_gpu_device_bdf(handle: str) -> str:
    return handle


def amdsmi_get_gpu_total_ecc_count(handle: str) -> Any:
    return answer(handle, "ecc")


def amdsmi_get_gpu_bad_page_info(handle: str) -> Any:
    return answer(handle, "bad_pages")


def amdsmi_get_gpu_vram_info(handle: str) -> Any:
    return answer(handle, "vram")


def amdsmi_get_gpu_process_list(handle: str) -> Any:
    return answer(handle, "processes")


noise("import")
if failure := state("import", ""):
    raise getattr(builtins, failure)("libamd_smi.so")
