"""Callbacks of training frameworks, by their events. `make test-torch` runs the real frameworks."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import memwatch
from support.library_process import run_json
from support.null_reasons import figures_without_a_reason

CUDA_ERROR = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Base:
    """Fake of each framework's base class."""


@pytest.fixture(autouse=True)
def frameworks(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Import stand-ins for the frameworks, and keep the lines of the log."""
    caplog.set_level(logging.INFO, "memwatch")
    contents: dict[str, dict[str, Any]] = {
        "transformers": {"TrainerCallback": Base},
        "lightning": {},
        "lightning.pytorch": {"Callback": Base},
        "keras": {"callbacks": SimpleNamespace(Callback=Base)},
        "accelerate": {},
        "accelerate.tracking": {"GeneralTracker": Base},
    }
    for name, members in contents.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)


def read_stages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the stages whose peaks were reported. Each has a figure and says that it is exact."""
    lines = [line for line in caplog.messages if "peak: " in line]
    assert all(line.endswith(" resident (exact)") for line in lines), lines
    caplog.clear()
    return [line.split("]")[0][1:] for line in lines]


@pytest.mark.process
def test_transformers_run_has_epochs_and_evaluations(caplog: pytest.LogCaptureFixture) -> None:
    """Evaluation inside an epoch and alone. The whole run has the greatest of its stages."""
    callback = memwatch.transformers_callback()
    state = SimpleNamespace(epoch=0.0)
    callback.on_train_begin(None, state, None, model=None)
    for number in range(2):
        state.epoch = float(number)
        callback.on_epoch_begin(None, state, None)
        callback.on_prediction_step(None, state, None)
        callback.on_prediction_step(None, state, None)
        callback.on_evaluate(None, state, None)
        callback.on_epoch_end(None, state, None)
    callback.on_train_end(None, state, None)
    assert read_stages(caplog) == ["evaluate", "epoch 1", "evaluate", "epoch 2", "train"]

    callback.on_prediction_step(None, state, None)
    callback.on_predict(None, state, None, {})
    assert read_stages(caplog) == ["evaluate"]
    assert {peak.stage for peak in callback.profiler.report().peaks} >= {"train", "epoch 2"}
    assert isinstance(callback, Base)


@pytest.mark.process
def test_peak_of_a_run_includes_the_stages_inside(caplog: pytest.LogCaptureFixture) -> None:
    """64 MiB in the epoch are in the peak of the run, which was measured outside of it."""
    callback = memwatch.keras_callback()
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    block = bytearray(b"x") * (64 << 20)
    del block
    callback.on_epoch_end(0)
    callback.on_train_end()

    peaks = {line.split("]")[0][1:]: line.partition("peak: ")[2] for line in caplog.messages if "peak: " in line}
    assert peaks["train"] == peaks["epoch 1"]


@pytest.mark.process
def test_keras_and_lightning_stages(caplog: pytest.LogCaptureFixture) -> None:
    keras, lightning = memwatch.keras_callback(), memwatch.lightning_callback()
    keras.on_test_begin()
    keras.on_test_end()
    keras.on_predict_begin()
    keras.on_predict_end()
    assert read_stages(caplog) == ["evaluate", "predict"]

    trainer = SimpleNamespace(current_epoch=4)
    lightning.on_fit_start(trainer, None)
    lightning.on_train_epoch_start(trainer, None)
    lightning.on_validation_start(trainer, None)
    lightning.on_validation_end(trainer, None)
    lightning.on_train_epoch_end(trainer, None)
    lightning.teardown(trainer, None, stage="fit")
    lightning.on_test_start(trainer, None)
    lightning.on_test_end(trainer, None)
    lightning.on_predict_start(trainer, None)
    lightning.on_predict_end(trainer, None)
    lightning.teardown(trainer, None, "predict")
    assert read_stages(caplog) == ["evaluate", "epoch 5", "train", "evaluate", "predict"]


@pytest.mark.process
def test_accelerate_tracker_reports_seldom(caplog: pytest.LogCaptureFixture) -> None:
    """A program may log every step: of these only one in ten seconds becomes a mark."""
    tracker = memwatch.accelerate_tracker()
    tracker.start()
    tracker.store_init_configuration({})
    for step in range(100):
        tracker.log({"loss": 1.0}, step=step)
    tracker.finish()

    assert (tracker.name, tracker.tracker) == ("memwatch", tracker.profiler)
    assert read_stages(caplog) == ["train"]


@pytest.mark.process
def test_error_that_ends_a_run_gets_an_autopsy(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning has a callback for errors; for the others it is the interpreter's hook, during the run only."""
    printed: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda *parts: printed.append(parts[1]))
    before = sys.excepthook
    callback = memwatch.transformers_callback(folder=tmp_path)
    callback.on_train_begin(None, None, None)
    sys.excepthook(RuntimeError, CUDA_ERROR, None)
    assert (printed, sys.excepthook) == ([CUDA_ERROR], before)
    (saved,) = tmp_path.glob("autopsy-*.json")
    written = json.loads(saved.read_text())
    assert (written["schema"], written["wanted_bytes"]) == (1, 2 << 30)
    assert set(figures_without_a_reason(written)) <= {"snapshot_file"}
    assert any(line.startswith("out of memory for 2.0 GiB") for line in caplog.messages)
    assert read_stages(caplog) == ["train"]

    lightning = memwatch.lightning_callback(folder=tmp_path)
    lightning.on_fit_start(None, None)
    lightning.on_exception(None, None, ValueError("other"))
    assert len(list(tmp_path.glob("autopsy-*.json"))) == 1
    assert sys.excepthook == before


def test_events_of_another_version_never_raise() -> None:
    """A state without an epoch, ends without a begin."""
    callback = memwatch.transformers_callback()
    callback.on_epoch_begin(None, SimpleNamespace(), None)
    callback.on_epoch_end(None, None, None)
    callback.on_evaluate(None, None, None)
    callback.on_train_end(None, None, None)
    memwatch.lightning_callback().teardown()


def test_callback_is_pickled_as_a_new_one() -> None:
    """Lightning sends its callbacks to the processes that it spawns."""
    copy = pickle.loads(pickle.dumps(memwatch.lightning_callback(0.25)))

    assert type(copy).__name__ == "LightningCallback"
    assert copy._settings == (0.25, True, None)


@pytest.mark.process
def test_importing_memwatch_imports_no_framework() -> None:
    """Also with all public names loaded. A missing framework is its own ImportError."""
    code = (
        "import json, sys, memwatch\n"
        "[getattr(memwatch, name) for name in [*memwatch.__all__, *memwatch.training.__all__]]\n"
        "found = sorted({'transformers', 'lightning', 'keras', 'accelerate', 'torch'} & set(sys.modules))\n"
        "sys.modules['keras'] = None\n"
        "try: memwatch.keras_callback()\n"
        "except ImportError as error: found.append(error.name)\n"
        "print(json.dumps(found))"
    )
    assert run_json(code) == ["keras"]
