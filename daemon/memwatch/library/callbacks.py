"""Callbacks for Hugging Face Trainer, Accelerate, Lightning and Keras.

Each function imports its framework, which the caller has imported already, and builds a class from the methods here
and the framework's base class. Importing memwatch imports none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from memwatch.library.never_raise import never_raise
from memwatch.library.profiler import MemoryProfiler
from memwatch.library.training_stages import TrainingStages

EVALUATE, PREDICT = "evaluate", "predict"
# Accelerate has no stages: `log` reports the peak so far, at most this often.
REPORT_SECONDS = 10.0


class StagesCallback:
    """Base of all callbacks. `profiler`: the peaks of the stages, with `report()` and `save()`."""

    factory: Any = None

    def __init__(self, interval: float, exact: bool, folder: str | Path | None) -> None:
        super().__init__()
        self._settings = (interval, exact, folder)
        self._stages = TrainingStages(*self._settings)
        self.profiler: MemoryProfiler = self._stages.profiler

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle as a new callback, for a process that a framework spawns."""
        return rebuild, (type(self).factory.__name__, self._settings)


class TransformersHooks(StagesCallback):
    """Events of transformers.Trainer."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        self._stages.enter("train")

    @never_raise(None)
    def on_epoch_begin(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401
        self._stages.enter(f"epoch {int(state.epoch or 0) + 1}")

    def on_epoch_end(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        self._stages.leave()

    def on_prediction_step(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        # The first event of an evaluation comes after its first batch, whose peak the stage before has.
        if self._stages.current != EVALUATE:
            self._stages.enter(EVALUATE)

    def on_evaluate(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        self._end_evaluation()

    def on_predict(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        self._end_evaluation()

    def on_train_end(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        self._stages.finish()

    def _end_evaluation(self) -> None:
        if self._stages.current == EVALUATE:
            self._stages.leave()
        if self._stages.current is None:
            self._stages.finish()


class LightningHooks(StagesCallback):
    """Events of lightning.pytorch.Trainer."""

    def on_fit_start(self, *_: Any) -> None:  # noqa: ANN401
        self._stages.enter("train")

    @never_raise(None)
    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:  # noqa: ANN401
        self._stages.enter(f"epoch {int(trainer.current_epoch) + 1}")

    def on_train_epoch_end(self, *_: Any) -> None:  # noqa: ANN401
        self._stages.leave()

    def on_validation_start(self, *_: Any) -> None:  # noqa: ANN401
        self._stages.enter(EVALUATE)

    def on_validation_end(self, *_: Any) -> None:  # noqa: ANN401
        self._stages.leave()

    def on_test_start(self, *_: Any) -> None:  # noqa: ANN401
        self._stages.enter(EVALUATE)

    def on_test_end(self, *_: Any) -> None:  # noqa: ANN401
        self._stages.leave()

    def on_predict_start(self, *_: Any) -> None:  # noqa: ANN401
        self._stages.enter(PREDICT)

    def on_predict_end(self, *_: Any) -> None:  # noqa: ANN401
        self._stages.leave()

    def on_exception(self, _trainer: Any, _module: Any, exception: BaseException) -> None:  # noqa: ANN401
        self._stages.fail(exception)

    def teardown(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        self._stages.finish()


class KerasHooks(StagesCallback):
    """Events of a Keras model's fit, evaluate and predict."""

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002
        self._stages.enter("train")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ANN401, ARG002
        self._stages.enter(f"epoch {epoch + 1}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ANN401, ARG002
        self._stages.leave()

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002
        self._stages.enter(EVALUATE)

    def on_test_end(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002
        self._leave_or_finish()

    def on_predict_begin(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002
        self._stages.enter(PREDICT)

    def on_predict_end(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002
        self._leave_or_finish()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002
        self._stages.finish()

    def _leave_or_finish(self) -> None:
        self._stages.leave()
        if self._stages.current is None:
            self._stages.finish()


class AccelerateHooks(StagesCallback):
    """Tracker of accelerate.Accelerator: one stage from `init_trackers` to `end_training`."""

    name: str = "memwatch"
    requires_logging_directory: bool = False
    main_process_only: bool = False

    @property
    def tracker(self) -> object:
        return self.profiler

    def start(self) -> None:
        if self._stages.current is None:
            self._stages.enter("train")

    def store_init_configuration(self, values: Any) -> None:  # noqa: ANN401, ARG002
        self.start()

    def log(self, values: Any, step: int | None = None, **_: Any) -> None:  # noqa: ANN401, ARG002
        self._stages.report_seldom("train" if step is None else f"train, step {step}", REPORT_SECONDS)

    def finish(self) -> None:
        self._stages.finish()


def transformers_callback(interval: float = 0.5, *, exact: bool = True, folder: str | Path | None = None) -> Any:  # noqa: ANN401  a transformers.TrainerCallback
    """Return a callback for Hugging Face's Trainer: stages and peaks of epochs and evaluations as marks.

    Use as `Trainer(…, callbacks=[memwatch.transformers_callback()])`. An out-of-memory error that ends the program
    gets an autopsy, saved in `folder` if there is one. Raises ImportError without transformers.
    """
    return build(TransformersHooks, import_module("transformers").TrainerCallback, interval, exact, folder)


def lightning_callback(interval: float = 0.5, *, exact: bool = True, folder: str | Path | None = None) -> Any:  # noqa: ANN401  a lightning.pytorch.Callback
    """Return a callback for Lightning's Trainer: stages, peaks and an autopsy, as `transformers_callback`.

    It is of the package that is imported, `lightning` or `pytorch_lightning`. Raises ImportError without both.
    """
    older = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    package = import_module("pytorch_lightning" if older else "lightning.pytorch")
    return build(LightningHooks, package.Callback, interval, exact, folder)


def keras_callback(interval: float = 0.5, *, exact: bool = True, folder: str | Path | None = None) -> Any:  # noqa: ANN401  a keras.callbacks.Callback
    """Return a callback for Keras' fit, evaluate and predict, as `transformers_callback`. Raises ImportError."""
    return build(KerasHooks, import_module("keras").callbacks.Callback, interval, exact, folder)


def accelerate_tracker(interval: float = 0.5, *, exact: bool = True, folder: str | Path | None = None) -> Any:  # noqa: ANN401  an accelerate.tracking.GeneralTracker
    """Return a tracker for `Accelerator(log_with=[memwatch.accelerate_tracker()])`. Raises ImportError.

    It measures from `init_trackers` to `end_training`. `log` reports the peak so far, every 10 s at most.
    """
    return build(AccelerateHooks, import_module("accelerate.tracking").GeneralTracker, interval, exact, folder)


FACTORIES: dict[type[StagesCallback], Callable[..., Any]] = {
    TransformersHooks: transformers_callback,
    LightningHooks: lightning_callback,
    KerasHooks: keras_callback,
    AccelerateHooks: accelerate_tracker,
}


def build(hooks: type[StagesCallback], base: type, interval: float, exact: bool, folder: str | Path | None) -> Any:  # noqa: ANN401
    kind = type(hooks.__name__.replace("Hooks", "Callback"), (hooks, base), {"factory": FACTORIES[hooks]})
    return kind(interval, exact, folder)


def rebuild(name: str, settings: tuple[Any, ...]) -> Any:  # noqa: ANN401
    interval, exact, folder = settings
    return globals()[name](interval, exact=exact, folder=folder)
