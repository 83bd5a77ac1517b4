"""Check the callbacks in real runs of transformers, Lightning, Keras and Accelerate: part of `make test-torch`."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import memwatch
from memwatch.library import program_safety
from memwatch.library.reporter import reporter

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB."
marks: list[str] = []


def note(text: str) -> None:
    """Stand for the daemon: keep the marks that it would get."""
    marks.append(text)


def silent(*_: object) -> None:
    """Print nothing for an error that nothing catches."""


def expect(name: str, callback: Any, *starts: str) -> None:
    """Check the marks of a run, and that no call failed."""
    for start in starts:
        assert any(mark.startswith(start) for mark in marks), (name, start, marks)
    assert not program_safety._logged, program_safety._logged
    assert all("exact" in mark for mark in marks if "peak: " in mark), marks
    assert sys.excepthook is silent
    assert type(pickle.loads(pickle.dumps(callback))) is not None
    print(f"{name}: {len(marks)} marks, such as {[mark for mark in marks if 'peak' in mark][-1]}")
    marks.clear()


def check_transformers(folder: Path) -> None:
    """Train a linear model for two epochs with an evaluation each, then fail."""
    import torch
    import transformers

    class Model(torch.nn.Module):
        def __init__(self, fails: bool = False) -> None:
            super().__init__()
            self.layer, self.fails = torch.nn.Linear(64, 1), fails

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            if self.fails:
                raise RuntimeError(OUT_OF_MEMORY)
            out = self.layer(x)
            return {"loss": (out.squeeze() - labels).square().mean(), "logits": out}

    rows = [{"x": torch.ones(64), "labels": torch.tensor(1.0)} for _ in range(32)]
    callback = memwatch.transformers_callback(folder=folder)

    def trainer(model: Model) -> Any:
        arguments = transformers.TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=2,
            eval_strategy="epoch",
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        )
        return transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, callbacks=[callback])

    trainer(Model()).train()
    expect(
        "transformers", callback, "[train]", "[epoch 1]", "[epoch 2] peak: ", "[evaluate] peak: ", "[train] peak: "
    )
    try:
        trainer(Model(fails=True)).train()
    except RuntimeError as error:
        sys.excepthook(type(error), error, error.__traceback__)  # as the interpreter does if nothing catches it
    expect("transformers, out of memory", callback, "out of memory for 2.0 GiB", "[train] peak: ")
    assert list(folder.glob("autopsy-*.json"))


def check_lightning(folder: Path) -> None:
    """Fit with a validation, test, predict, and fail."""
    import torch
    from lightning import pytorch as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.fails = torch.nn.Linear(64, 1), False

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            if self.fails:
                raise RuntimeError(OUT_OF_MEMORY)
            return self.layer(batch).square().mean()

        def validation_step(self, batch: Any, _index: int) -> None:
            self.layer(batch)

        test_step = predict_step = validation_step

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters())

    loader = torch.utils.data.DataLoader(torch.ones(32, 64), batch_size=8)
    callback = memwatch.lightning_callback(folder=folder)
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "enable_checkpointing": False,
    }
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=[callback], log_every_n_steps=1, **quiet)
    module = Module()
    trainer.fit(module, loader, loader)
    expect("lightning", callback, "[train]", "[epoch 2] peak: ", "[evaluate] peak: ", "[train] peak: ")
    trainer.test(module, loader, verbose=False)
    trainer.predict(module, loader)
    expect("lightning, test and predict", callback, "[evaluate] peak: ", "[predict] peak: ")
    module.fails = True
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=[callback], log_every_n_steps=1, **quiet)
    with suppress(RuntimeError):  # its own, from the step
        trainer.fit(module, loader)
    expect("lightning, out of memory", callback, "out of memory for 2.0 GiB", "[train] peak: ")


def check_keras() -> None:
    """Fit with a validation, evaluate and predict."""
    import keras

    callback = memwatch.keras_callback()
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = keras.ops.ones((32, 64)), keras.ops.ones((32, 1))
    model.fit(x, y, epochs=2, validation_data=(x, y), verbose=0, callbacks=[callback])
    expect("keras", callback, "[train]", "[epoch 2] peak: ", "[evaluate] peak: ", "[train] peak: ")
    model.evaluate(x, y, verbose=0, callbacks=[callback])
    model.predict(x, verbose=0, callbacks=[callback])
    expect("keras, evaluate and predict", callback, "[evaluate] peak: ", "[predict] peak: ")


def check_accelerate() -> None:
    """Log steps through Accelerate."""
    import accelerate

    tracker = memwatch.accelerate_tracker()
    accelerator = accelerate.Accelerator(cpu=True, log_with=[tracker])
    accelerator.init_trackers("run", {"lr": 0.1})
    tracker._stages._reported_at = 0.0  # as if ten seconds had passed
    accelerator.log({"loss": 1.0}, step=3)
    accelerator.end_training()
    expect("accelerate", tracker, "[train]", "[train, step 3] peak: ", "[train] peak: ")


CHECKS: dict[str, Callable[[Path], None]] = {
    "transformers": check_transformers,
    "lightning": check_lightning,
    "keras": lambda _folder: check_keras(),
    "accelerate": lambda _folder: check_accelerate(),
}


def main(names: Sequence[str]) -> None:
    logging.disable(logging.WARNING)
    sys.excepthook = silent
    reporter.mark = note  # type: ignore[method-assign]
    assert not {"transformers", "lightning", "keras", "accelerate", "torch"} & set(sys.modules)
    with tempfile.TemporaryDirectory() as folder:
        for name in names or CHECKS:
            CHECKS[name](Path(folder))
    print("the callbacks work in real training runs")


if __name__ == "__main__":
    main(sys.argv[1:])
