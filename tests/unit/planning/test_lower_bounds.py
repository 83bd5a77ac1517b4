"""No answer is yes where the need is a lower bound: a law about the planner and all that show its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from memwatch.cli.fit import fit_lines, name_answer, prepare, read_answer
from memwatch.cli.machines import Need, place
from memwatch.cli.what_fits import answer_named
from memwatch.core.backends.model import Backends
from memwatch.library.backend_selection import NoBackendError, select_for_answer
from memwatch.planning import model_table
from memwatch.planning.answer import FitAnswer, answer_model, answer_request
from memwatch.planning.arguments import UnknownModelError
from memwatch.planning.checkpoint import Checkpoint, read_checkpoint
from memwatch.planning.engines import ENGINES
from memwatch.planning.request import Use, write_request
from memwatch.planning.training import TrainingPlan
from memwatch.reporting.render.fit_json import fit_json
from memwatch_web.api.fit_query import parse_query
from memwatch_web.pages.fit_page import build_form
from scripts.published_models import MODELS
from support import diffusers_folders
from support.checkpoint_files import LLAMA_KEYS, gguf, safetensors
from support.sample_fleet import listed_machine, listed_tick
from support.sample_snapshots import discrete_gpu

# A model of 52 million parameters: any machine has room for what is counted.
CONFIG = {
    **next(one.config for one in MODELS if one.name == "Llama 3.2 1B"),
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 50_000,
}  # fmt: skip
TENSORS = {"whole": ("BF16", [52_000_000])}
HALF = {"half": ("BF16", [26_000_000])}
# As many numbers as the shape has.
GGUF_TENSORS = {"t": (12, [256, 291], 0)}
GGUF_BYTES = 291 * 144
HALF_GGUF = {"t": (12, [256, 140], 0)}


def sparse(path: Path, tensors: Mapping[str, tuple[str, list[int]]] = TENSORS) -> Path:
    shapes = {name: shape for name, (_, shape) in tensors.items()}
    return diffusers_folders.sparse_safetensors(path, shapes, "BF16")


def config(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


def with_tensors(folder: Path, **changes: Any) -> Path:
    sparse(folder / "model.safetensors")
    return config(folder, **changes)


def shards(folder: Path, *parts: int) -> Path:
    for part in parts:
        sparse(folder / f"model-{part:05}-of-00002.safetensors", HALF)
    return config(folder)


def indexed(folder: Path, *parts: int) -> Path:
    names = {f"t{part}": f"model-{part:05}-of-00002.safetensors" for part in (1, 2)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return shards(folder, *parts)


def gguf_parts(folder: Path, *parts: int) -> Path:
    for part in parts:
        gguf(folder / f"m-{part:05}-of-00002.gguf", LLAMA_KEYS if part == 1 else {}, GGUF_TENSORS, GGUF_BYTES)
    return folder


def whole_gguf(folder: Path, **keys: Any) -> Path:
    return gguf(folder / "model.gguf", {**LLAMA_KEYS, **keys}, GGUF_TENSORS, GGUF_BYTES)


def images(folder: Path, lacking: str, file: str = "") -> Path:
    diffusers_folders.sdxl(folder)
    for path in (folder / lacking).iterdir() if lacking else ():
        if not file or path.name == file:
            path.unlink()
    if lacking and not file:
        (folder / lacking).rmdir()
    return folder


def denoiser_alone(folder: Path) -> Path:
    inner = "model.diffusion_model."
    shapes = {f"{inner}input_blocks.0.0.weight": [320, 4, 3, 3], f"{inner}rest": [1000]}
    return diffusers_folders.sparse_safetensors(folder / "model.safetensors", shapes, "F16")


def adapter(folder: Path) -> Path:
    safetensors(folder / "adapter_model.safetensors", {"lora": ("BF16", [1000])})
    return config(folder)


# Each kind of unknown, and what its answer has to name.
UNKNOWN: Mapping[str, tuple[Callable[[Path], Path], str]] = {
    "family with its tensors": (lambda path: with_tensors(path, model_type="novel"), "'novel'"),
    "no config.json": (lambda path: sparse(path / "model.safetensors"), "shape is not known"),
    "key of a cache": (lambda path: with_tensors(path, index_topk=64), "index_topk"),
    "key of a cache, without tensors": (lambda path: config(path, index_topk=64), "index_topk"),
    "type of layers": (lambda path: with_tensors(path, layer_types=["novel"] * 4), "'novel'"),
    "missing shard": (lambda path: shards(path, 1), "model-00002-of-00002.safetensors"),
    "missing shard of an index": (lambda path: indexed(path, 2), "model-00001-of-00002.safetensors"),
    "one shard by name": (lambda path: shards(path, 1) / "model-00001-of-00002.safetensors", "00002-of-00002"),
    "half of the tensors": (lambda path: config(sparse(path / "weights_1.safetensors", HALF).parent), "the others"),
    "part under another name": (lambda path: whole_gguf(path, **{"split.count": 2}), "one of 2 parts"),
    "half of a GGUF": (lambda path: gguf(path / "m.gguf", LLAMA_KEYS, HALF_GGUF, 140 * 144), "the others"),
    "tensors of an adapter": (adapter, "2000 bytes"),
    "missing part of a GGUF": (lambda path: gguf_parts(path, 1), "m-00002-of-00002.gguf"),
    "one part by name": (lambda path: gguf_parts(path, 1) / "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"),
    "key of a GGUF": (lambda path: whole_gguf(path, **{"llama.attention.indexer.top_k": 16}), "indexer.top_k"),
    "no shape in a GGUF": (lambda path: whole_gguf(path, **{"llama.block_count": 0}), "block_count"),
    "vocabulary alone": (lambda path: gguf(path / "vocab.gguf", LLAMA_KEYS, {}, 0), "0 parameters"),
    "component of diffusers": (lambda path: images(path, "text_encoder_2"), "text_encoder_2"),
    "tensors of a component": (lambda path: images(path, "vae", "diffusion_pytorch_model.safetensors"), "vae"),
    "denoiser alone": (denoiser_alone, "text encoders, the VAE"),
}  # fmt: skip
# The same files, complete. Without this, the law would hold for a planner that never says yes.
KNOWN: Mapping[str, Callable[[Path], Path]] = {
    "tensors and config.json": with_tensors,
    "config.json": config,
    "shards": lambda path: shards(path, 1, 2),
    "one shard by name": lambda path: shards(path, 1, 2) / "model-00002-of-00002.safetensors",
    "index": lambda path: indexed(path, 1, 2),
    "index without its files": indexed,
    "parts of a GGUF": lambda path: gguf_parts(path, 1, 2),
    "one part by name": lambda path: gguf_parts(path, 1, 2) / "m-00002-of-00002.gguf",
    "GGUF": whole_gguf,
    "diffusers": lambda path: images(path, ""),
    "single file": lambda path: diffusers_folders.single_file(path / "model.safetensors"),
}
NO_USE = Use()
NO_BACKENDS = Backends("cpu", "", 0.0, ())


def answers(found: Checkpoint, use: Use) -> list[FitAnswer]:
    """Return the answer of the library, and that of the API and the page."""
    query = write_request(found, use, "all")
    page = build_form(query, ROOMY).answered
    assert page is not None
    return [
        answer_model(found, use, ROOMY, tuple(ENGINES)),
        answer_request(parse_query(query), ROOMY),
        page,
    ]


ROOMY = discrete_gpu()
NEIGHBOUR = listed_machine("big", listed_tick(headroom_after_reclaim_bytes=1 << 40, headroom_size_bytes=1 << 40))


def check_no_yes(found: Checkpoint, use: Use, words: str) -> None:
    for answer in answers(found, use):
        shown = {**fit_json(answer), "subject": "model", "note": answer.need.note}
        assert not answer.fits
        assert words in answer.fit.unknown
        assert all(one.fits is not True for one in answer.fit.verdicts)
        assert (answer.greatest, answer.change, answer.launches.lines) == (None, None, ())
        assert (shown["best"], shown["split"], shown["decode_rate"]) == (None, None, None)
        assert any(line.startswith("Not known if it fits: ") for line in fit_lines(read_answer(shown)))
        with pytest.raises(NoBackendError, match="it is not known if"):
            select_for_answer(NO_BACKENDS, answer)
        check_earlier_daemon(shown, answer.need.note)
        need = Need(answer.fit.bytes, 0, 0, is_least=bool(answer.need.note))
        assert [one.fits for one in place(need, [NEIGHBOUR], None)] == [None]


def check_earlier_daemon(shown: Mapping[str, Any], note: str) -> None:
    """A daemon that took the lower bound for the need: its yes, its lines and its changes are not shown."""
    verdicts = [{**one, "fits": True, "absent": {}} for one in shown["verdicts"]]
    launch = {"engine": "vllm", "command": "vllm serve", "flags": [], "notes": []}
    greatest = {"context": 8192, "batch": 1, "dtype": None}
    sent = {**shown, "best": "gpu0", "verdicts": verdicts, "unknown": None, "launch": [launch]}
    sent["greatest"] = greatest
    named = name_answer(sent, "model", note)
    text = "\n".join(fit_lines(read_answer(named)))

    assert (named["best"], named["unknown"]) == (None, note)
    assert all(one["fits"] is None for one in named["verdicts"])
    assert "✓" not in text
    assert "Fits" not in text
    assert "vllm serve" not in text
    assert "Greatest" not in text


@pytest.mark.parametrize("kind", UNKNOWN)
def test_lower_bound_on_a_named_machine_is_never_a_yes(kind: str, tmp_path: Path) -> None:
    """Also not on more of its GPUs."""
    make, words = UNKNOWN[kind]
    found = read_checkpoint(make(tmp_path))
    for machine, use in (("8x h200 + 2TiB", NO_USE), ("gb10", Use(reserve_bytes=121 << 30))):
        answer = answer_named(machine, lambda seen, use=use: answer_model(found, use, seen)).json  # type: ignore[misc]
        assert (answer["best"], answer["split"], answer["more_gpus"]) == (None, None, None)
        assert words in (answer["unknown"] or words)


def test_lower_bound_is_in_no_list_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has none: a row with a key that this version does not count would be left out."""
    rows = {"known": CONFIG, "lacking": {**CONFIG, "index_topk": 64}}
    monkeypatch.setattr(model_table, "read_models", lambda: rows)
    monkeypatch.setattr(model_table, "list_models", model_table.list_models.__wrapped__)

    assert {one.model for one in model_table.list_runnable(ROOMY, NO_USE)} == {"known"}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_lower_bound_is_never_a_yes(kind: str, tmp_path: Path) -> None:
    make, words = UNKNOWN[kind]
    check_no_yes(read_checkpoint(make(tmp_path)), NO_USE, words)


@pytest.mark.parametrize("kind", ["key of a cache", "type of layers", "missing shard"])
def test_lower_bound_of_training_is_never_a_yes(kind: str, tmp_path: Path) -> None:
    make, words = UNKNOWN[kind]
    check_no_yes(read_checkpoint(make(tmp_path)), Use(training=TrainingPlan(lora_rank=8)), words)


@pytest.mark.parametrize("kind", UNKNOWN)
def test_lower_bound_without_room_is_a_no(kind: str, tmp_path: Path) -> None:
    found = read_checkpoint(UNKNOWN[kind][0](tmp_path))
    answer = answer_model(found, Use(reserve_bytes=1 << 50), ROOMY)

    assert (answer.fits, answer.fit.unknown) == (False, "")


@pytest.mark.parametrize("kind", KNOWN)
def test_complete_model_is_a_yes(kind: str, tmp_path: Path) -> None:
    for answer in answers(read_checkpoint(KNOWN[kind](tmp_path)), NO_USE):
        assert answer.fits
        assert answer.fit.unknown == answer.need.note == ""


@pytest.mark.parametrize(
    ("make", "use", "words"),
    [
        (lambda path: config(path, model_type="novel"), NO_USE, "'novel' is not known"),
        (lambda path: config(path, quantization_config={"quant_method": "novel"}), NO_USE, "novel"),
        (lambda path: sparse(path / "m.safetensors"), Use(training=TrainingPlan()), "shape is not known"),
        (lambda path: path / "missing", NO_USE, "missing"),
        (lambda path: path, NO_USE, "has no safetensors files"),
    ],
)
def test_model_without_any_figure_is_unknown(
    make: Callable[[Path], Path], use: Use, words: str, tmp_path: Path
) -> None:
    """It is an error, which the command ends with 3: no plan has a number."""
    with pytest.raises(UnknownModelError, match=words):
        prepare(str(make(tmp_path)), use, "")
