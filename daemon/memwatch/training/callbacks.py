"""Callbacks for Hugging Face Trainer, Accelerate, Lightning and Keras.

Each function imports its framework, which the caller has imported already, and builds a class from the methods here
and the framework's base class. Importing memwatch imports none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from memwatch.core.model import Absent
from memwatch.core.units import size
from memwatch.library.memory_pool import greater
from memwatch.library.peaks import Peak
from memwatch.library.profiler import MemoryProfiler
from memwatch.library.program_safety import log, never_raise
from memwatch.library.reporter import reporter
from memwatch.planning.arguments import check_flag, check_folder, check_seconds
from memwatch.training.oom_autopsy import autopsy
from memwatch.training.oom_errors import is_out_of_memory

# Stages of a training run, their peaks and an autopsy, for the callbacks of training frameworks.


class TrainingStages:
    """Profiler of a training run. Each stage and its peak are marks at the daemon and lines of the log."""

    def __init__(self, interval: float = 0.5, exact: bool = True, folder: str | Path | None = None) -> None:
        self.profiler: MemoryProfiler = MemoryProfiler(interval, exact=exact)
        self._folder = folder
        self._stages: list[str] = []
        self._inside: dict[str, Peak] = {}
        self._reported_at = time.monotonic()
        self._hook = ExceptionHook(self)

    @never_raise(None)
    def start(self) -> None:
        """Start sampling, and examine an out-of-memory error that ends the program."""
        self.profiler.start()
        self._hook.install()

    @never_raise(None)
    def enter(self, name: str) -> None:
        """Begin a stage inside the current one."""
        self.start()
        self._stages.append(name)
        self.profiler.stage(name)

    @never_raise(None)
    def leave(self) -> None:
        """End the innermost stage, report its peak, and return to the one around it."""
        self._end_innermost()
        if self._stages:
            self.profiler.stage(self._stages[-1])

    @property
    def current(self) -> str | None:
        return self._stages[-1] if self._stages else None

    @never_raise(None)
    def report_seldom(self, title: str, seconds: float) -> None:
        """Report the innermost stage so far, if the last such report is this long ago."""
        now = time.monotonic()
        if self._stages and now - self._reported_at >= seconds:
            self._reported_at = now
            report(title, self._peak(self._stages[-1]))

    @never_raise(None)
    def finish(self) -> None:
        """End all stages and stop sampling."""
        self._hook.remove()
        while self._stages:
            self._end_innermost()
        self.profiler.stop()

    @never_raise(None)
    def fail(self, error: BaseException) -> None:
        """Examine an out-of-memory error. Other errors only end the stages."""
        if is_out_of_memory(error):
            autopsy(error, self._folder)
        self.finish()

    def _end_innermost(self) -> None:
        if not self._stages:
            return
        name = self._stages.pop()
        peak = self._peak(name)
        self._inside.pop(name, None)
        report(name, peak)
        if self._stages and peak is not None:
            outer = self._stages[-1]
            self._inside[outer] = merge(self._inside.get(outer), peak)

    def _peak(self, name: str) -> Peak | None:
        """Return the peak of a stage with all stages inside it."""
        peak = self.profiler.peak(name)
        return peak if peak is None else merge(self._inside.get(name), peak)


class ExceptionHook:
    """Part of `sys.excepthook` while a run is under way, since most frameworks have no callback for errors."""

    def __init__(self, stages: TrainingStages) -> None:
        self._stages = stages
        self._before = sys.excepthook
        self._installed = False

    def install(self) -> None:
        if not self._installed:
            self._before, self._installed = sys.excepthook, True
            sys.excepthook = self.call

    def remove(self) -> None:
        """Restore the hook, unless another one was set since: that one still calls this one."""
        self._installed = False
        if sys.excepthook == self.call:
            sys.excepthook = self._before

    def call(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._installed:
            self._stages.fail(error)
        self._before(kind, error, trace)


def report(title: str, peak: Peak | None) -> None:
    if peak is not None:
        line = f"[{title}] {peak_words(peak)}"
        log.info("%s", line)
        reporter.mark(line)


def merge(one: Peak | None, other: Peak) -> Peak:
    """Return the greater of two peaks, exact where both are."""
    if one is None:
        return other
    names = ("pool_used_bytes", "rss_bytes", "allocated_bytes", "reserved_bytes")
    figures = {name: greater(getattr(one, name), getattr(other, name)) for name in names}
    return replace(other, **figures, exact=tuple(name for name in one.exact if name in other.exact))


def peak_words(peak: Peak) -> str:
    name = "rss_bytes" if isinstance(peak.allocated_bytes, Absent) else "allocated_bytes"
    words = "resident" if name == "rss_bytes" else "allocated"
    figure = getattr(peak, name)
    if isinstance(figure, Absent):
        return "peak not known"
    return f"peak: {size(figure)} {words} ({'exact' if name in peak.exact else 'sampled'})"


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
    gets an autopsy, saved in `folder` if there is one. Raises InvalidInputError for wrong arguments, ImportError
    without transformers.
    """
    settings = check_settings(interval, exact, folder)
    return build(TransformersHooks, import_module("transformers").TrainerCallback, settings)


def lightning_callback(interval: float = 0.5, *, exact: bool = True, folder: str | Path | None = None) -> Any:  # noqa: ANN401  a lightning.pytorch.Callback
    """Return a callback for Lightning's Trainer: stages, peaks and an autopsy, as `transformers_callback`.

    It is of the package that is imported, `lightning` or `pytorch_lightning`. Raises ImportError without both.
    """
    settings = check_settings(interval, exact, folder)
    older = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    package = import_module("pytorch_lightning" if older else "lightning.pytorch")
    return build(LightningHooks, package.Callback, settings)


def keras_callback(interval: float = 0.5, *, exact: bool = True, folder: str | Path | None = None) -> Any:  # noqa: ANN401  a keras.callbacks.Callback
    """Return a callback for Keras' fit, evaluate and predict, as `transformers_callback`. Raises ImportError."""
    settings = check_settings(interval, exact, folder)
    return build(KerasHooks, import_module("keras").callbacks.Callback, settings)


def accelerate_tracker(interval: float = 0.5, *, exact: bool = True, folder: str | Path | None = None) -> Any:  # noqa: ANN401  an accelerate.tracking.GeneralTracker
    """Return a tracker for `Accelerator(log_with=[memwatch.accelerate_tracker()])`. Raises ImportError.

    It measures from `init_trackers` to `end_training`. `log` reports the peak so far, every 10 s at most.
    """
    settings = check_settings(interval, exact, folder)
    return build(AccelerateHooks, import_module("accelerate.tracking").GeneralTracker, settings)


FACTORIES: dict[type[StagesCallback], Callable[..., Any]] = {
    TransformersHooks: transformers_callback,
    LightningHooks: lightning_callback,
    KerasHooks: keras_callback,
    AccelerateHooks: accelerate_tracker,
}


Settings = tuple[float, bool, str | Path | None]


def check_settings(interval: float, exact: bool, folder: str | Path | None) -> Settings:
    """Return the arguments of a callback, which are checked before its framework is imported."""
    check_seconds(interval, "interval", 0.5)
    MemoryProfiler(interval, exact=check_flag(exact, "exact", True))
    check_folder(folder)
    return interval, exact, folder


def build(hooks: type[StagesCallback], base: type, settings: Settings) -> Any:  # noqa: ANN401
    kind = type(hooks.__name__.replace("Hooks", "Callback"), (hooks, base), {"factory": FACTORIES[hooks]})
    return kind(*settings)


def rebuild(name: str, settings: tuple[Any, ...]) -> Any:  # noqa: ANN401
    interval, exact, folder = settings
    return globals()[name](interval, exact=exact, folder=folder)
