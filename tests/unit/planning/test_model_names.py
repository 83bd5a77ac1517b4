"""Names of models: in the cache of Hugging Face and in the store of Ollama, without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.planning.arguments import UnknownModelError
from memwatch.planning.checkpoint import Checkpoint, choose_gguf, read_checkpoint
from memwatch.planning.hub import HubName
from memwatch.planning.model_names import find_cache, parse_hub_name, read_subject
from scripts.published_models import MODELS
from support import diffusers_folders
from support.checkpoint_files import LLAMA_KEYS, gguf
from support.model_hub import SHA
from support.model_stores import hugging_face_cache, ollama_store

CONFIG = next(one.config for one in MODELS if one.name == "Llama 3.2 1B")
PARAMETERS = next(one.parameters for one in MODELS if one.name == "Llama 3.2 1B")
NAME = "meta/Llama-1B"


def folder_with(path: Path, parameters: int = PARAMETERS) -> Path:
    path.mkdir(exist_ok=True)
    diffusers_folders.sparse_safetensors(path / "model.safetensors", {"all": [parameters]}, "BF16")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def gguf_file(path: Path, rows: int = 291) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return gguf(path, LLAMA_KEYS, {"t": (12, [256, rows], 0)}, 144 * rows)


def nameless(found: Checkpoint) -> Checkpoint:
    return replace(found, name="")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-8B", HubName("Qwen/Qwen3-8B")),
        ("org/a.b_c-1@v1.0", HubName("org/a.b_c-1", "", "v1.0")),
        ("org/model@refs/pr/3", HubName("org/model", "", "refs/pr/3")),
        ("org/model-GGUF:Q4_K_M@main", HubName("org/model-GGUF", "Q4_K_M")),
        ("org/model@../../secret", None),
        ("org/../x", None),
        ("/org/model", None),
        ("org/model/file", None),
        ("models/a.gguf", None),
        ("qwen3:8b", None),
        ("20GiB", None),
    ],
)
def test_name_of_a_repository_has_an_owner(text: str, name: HubName | None) -> None:
    assert parse_hub_name(text) == name
    assert name is None or parse_hub_name(str(name)) == name


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/c"}, "/c"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/x"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({}, str(Path("~/.cache/huggingface/hub").expanduser())),
    ],
)
def test_cache_is_that_of_huggingface_hub(environ: dict[str, str], cache: str) -> None:
    assert str(find_cache(environ)) == cache


def test_name_and_snapshot_have_the_answer_of_the_folder(tmp_path: Path) -> None:
    """Files of a snapshot are links to blobs."""
    whole = read_checkpoint(folder_with(tmp_path / "plain"))
    snapshot = hugging_face_cache(tmp_path / "hub", NAME, tmp_path / "plain")
    environ = {"HF_HUB_CACHE": str(tmp_path / "hub")}

    assert whole.weights_bytes == 2 * PARAMETERS
    for subject in (NAME, f"{NAME}@main", f"{NAME}@{SHA}", str(snapshot)):
        assert nameless(read_subject(subject, environ=environ)) == nameless(whole)


def test_revision_is_a_branch_a_tag_or_a_commit(tmp_path: Path) -> None:
    hugging_face_cache(tmp_path, NAME, folder_with(tmp_path / "new"))
    hugging_face_cache(tmp_path, NAME, folder_with(tmp_path / "old", PARAMETERS // 2), "v1", "f" * 40)
    environ = {"HF_HUB_CACHE": str(tmp_path)}

    assert read_subject(NAME, environ=environ).weights_bytes == 2 * PARAMETERS
    assert read_subject(f"{NAME}@v1", environ=environ).weights_bytes == PARAMETERS
    with pytest.raises(UnknownModelError, match=f"^{NAME}@v2: is no file, and not in {tmp_path}; add --online"):
        read_subject(f"{NAME}@v2", environ=environ)


def test_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "meta").mkdir()
    folder_with(tmp_path / NAME, PARAMETERS // 2)
    hugging_face_cache(tmp_path / "hub", NAME, folder_with(tmp_path / "other"))

    assert read_subject(NAME, environ={"HF_HUB_CACHE": str(tmp_path / "hub")}).weights_bytes == PARAMETERS


def test_interrupted_download_is_a_lower_bound(tmp_path: Path) -> None:
    """The index is there, one of two shards is not."""
    files = folder_with(tmp_path / "files", PARAMETERS // 2)
    (files / "model.safetensors").rename(files / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (files / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    hugging_face_cache(tmp_path, NAME, files)

    found = read_subject(NAME, environ={"HF_HUB_CACHE": str(tmp_path)})
    assert found.unknown == "1 of its files is missing and not counted: model-00002-of-00002.safetensors."


def test_format_chooses_among_gguf_files(tmp_path: Path) -> None:
    """The vision tower belongs to each of them."""
    files = tmp_path / "files"
    gguf_file(files / "model-Q4_K_M.gguf", 64)
    gguf_file(files / "model-Q4_K_S.gguf", 96)
    gguf_file(files / "mmproj-F16.gguf", 2)
    hugging_face_cache(tmp_path, "org/model-GGUF", files)
    environ = {"HF_HUB_CACHE": str(tmp_path)}

    found = read_subject("org/model-GGUF:q4_k_m", environ=environ)

    assert found.weights_bytes == 144 * 66
    assert Path(found.projector).name == "mmproj-F16.gguf"
    assert found.projector.startswith(str(tmp_path))
    for subject, words in (("org/model-GGUF", "name one"), ("org/model-GGUF:Q8_0", "0 of them are Q8_0")):
        with pytest.raises(UnknownModelError, match=f"has 2 GGUF models, model-Q4_K_M, model-Q4_K_S; {words}"):
            read_subject(subject, environ=environ)


FORMATS = ("Q6_K", "Q6_K_L", "IQ4_XS", "IQ4_NL", "Q4_K_XL", "UD-Q4_K_XL", "UD-Q2_K_XL", "Q8_0")


@pytest.mark.parametrize("variant", [*FORMATS, "Q2_K_XL"])
@pytest.mark.parametrize("stem", ["model-{}", "{0}/model-{0}", "model.{}"])
def test_format_is_the_whole_word_of_a_name(stem: str, variant: str) -> None:
    """A mix of the publisher counts where there is no plain file of that format."""
    names = [f"{stem.format(one)}.gguf" for one in FORMATS]
    wanted = "UD-Q2_K_XL" if variant == "Q2_K_XL" else variant

    assert choose_gguf(names, variant.lower(), "org/model") == [f"{stem.format(wanted)}.gguf"]


@pytest.mark.parametrize("variant", ["Q4_K", "Q6", "K_XL", "UD", "XS"])
def test_part_of_a_format_chooses_nothing(variant: str) -> None:
    with pytest.raises(UnknownModelError, match=f"of them are {variant}, for example"):
        choose_gguf([f"model-{one}.gguf" for one in FORMATS], variant, "org/model")


def test_formats_near_the_wanted_one_are_named_first() -> None:
    with pytest.raises(UnknownModelError, match="has 8 GGUF models, model-Q6_K, model-Q6_K_L, "):
        choose_gguf([f"model-{one}.gguf" for one in FORMATS], "Q6", "org/model")


@pytest.mark.parametrize("name", ["imatrix_unsloth.gguf", "model-imatrix.gguf"])
def test_statistics_are_no_model(name: str) -> None:
    assert choose_gguf(["model-Q8_0.gguf", name], "", "org/model") == ["model-Q8_0.gguf"]


def test_formats_in_folders_of_a_cache_are_found(tmp_path: Path) -> None:
    """As in repositories of large models: two parts in a folder for each format, and one vision tower."""
    files = tmp_path / "files"
    gguf_file(files / "mmproj-F16.gguf", 2)
    for form, rows in (("UD-Q4_K_XL", 64), ("Q8_0", 96)):
        for part in (1, 2):
            keys = LLAMA_KEYS if part == 1 else {}
            path = files / form / f"model-{form}-{part:05}-of-00002.gguf"
            path.parent.mkdir(exist_ok=True)
            gguf(path, keys, {f"t{part}": (12, [256, rows], 0)}, 144 * rows)
    hugging_face_cache(tmp_path, NAME, files)
    environ = {"HF_HUB_CACHE": str(tmp_path)}

    assert read_subject(f"{NAME}:UD-Q4_K_XL", environ=environ).weights_bytes == 144 * (2 * 64 + 2)
    assert read_subject(f"{NAME}:q4_k_xl", environ=environ).weights_bytes == 144 * (2 * 64 + 2)
    assert read_subject(f"{NAME}:Q8_0", environ=environ).weights_bytes == 144 * (2 * 96 + 2)
    with pytest.raises(UnknownModelError, match="has 2 GGUF models, model-Q8_0, model-UD-Q4_K_XL; name one"):
        read_subject(NAME, environ=environ)
    next(tmp_path.glob("models--*/snapshots/*/Q8_0/*-00002-*")).unlink()
    assert "1 of its files is missing" in read_subject(f"{NAME}:Q8_0", environ=environ).unknown


@pytest.mark.parametrize(
    ("subject", "manifest"),
    [
        ("qwen3:8b", "library/qwen3/8b"),
        ("ollama:qwen3:8b", "library/qwen3/8b"),
        ("ollama:qwen3", "library/qwen3/latest"),
        ("ollama:someone/model:q8", "someone/model/q8"),
    ],
)
def test_model_of_ollama_is_read_by_its_name(subject: str, manifest: str, tmp_path: Path) -> None:
    """The projector's weights count, the template's bytes do not."""
    model, tower = gguf_file(tmp_path / "model.gguf"), gguf_file(tmp_path / "tower.gguf", 2)
    (tmp_path / "template").write_text("{{ .Prompt }}")
    layers = {"model": model, "projector": tower, "template": tmp_path / "template"}
    ollama_store(tmp_path / "store", manifest, layers)

    found = read_subject(subject, environ={"OLLAMA_MODELS": str(tmp_path / "store")})
    assert (found.weights_bytes, found.source, found.unknown) == (144 * 293, "GGUF", "")
    assert found.transformer is not None
    assert Path(found.name).is_file()


def test_adapter_of_ollama_counts(tmp_path: Path) -> None:
    layers = {"model": gguf_file(tmp_path / "model.gguf"), "adapter": gguf_file(tmp_path / "adapter.gguf", 10)}
    ollama_store(tmp_path / "store", "library/tuned/8b", layers)

    assert read_subject("tuned:8b", environ={"OLLAMA_MODELS": str(tmp_path / "store")}).weights_bytes == 144 * 301


def test_format_of_a_model_without_gguf_files_is_refused(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "config.json").write_text("{}")
    hugging_face_cache(tmp_path, "org/model", files)

    with pytest.raises(UnknownModelError, match="has no GGUF files, of which Q8_0 could be one"):
        read_subject("org/model:Q8_0", environ={"HF_HUB_CACHE": str(tmp_path)})


@pytest.mark.parametrize(("subject", "variable"), [("org/model", "HF_HUB_CACHE"), ("qwen3:8b", "OLLAMA_MODELS")])
def test_home_of_an_unknown_user_is_named(subject: str, variable: str) -> None:
    with pytest.raises(UnknownModelError, match=f"^~nouser/x: .* set {variable} to a whole path"):
        read_subject(subject, environ={variable: "~nouser/x"})


def test_name_with_a_registry_is_that_of_the_registry(tmp_path: Path) -> None:
    for host, rows in (("one.example", 64), ("two.example", 96)):
        ollama_store(tmp_path, "org/model/Q4_K_M", {"model": gguf_file(tmp_path / f"{host}.gguf", rows)}, host)

    found = read_subject("ollama:two.example/org/model:Q4_K_M", environ={"OLLAMA_MODELS": str(tmp_path)})
    assert found.weights_bytes == 144 * 96


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({"layers": [{"mediaType": "x.model", "digest": "sha256:../../etc/passwd"}]}, "no readable digest"),
        ({"layers": [{"mediaType": "x.template", "digest": "sha256:" + "a" * 64}]}, "models that run elsewhere"),
        ({"layers": {"a": 1}}, "has no GGUF file"),
        ({"layers": [{"mediaType": "x.model", "digest": "sha256:" + "a" * 64}]}, "cannot be read"),
        ([], "not an object"),
    ],
)
def test_odd_manifest_is_refused(manifest: object, words: str, tmp_path: Path) -> None:
    path = ollama_store(tmp_path, "library/odd/1b", {})
    path.write_text(json.dumps(manifest))

    with pytest.raises(UnknownModelError, match=words):
        read_subject("odd:1b", environ={"OLLAMA_MODELS": str(tmp_path)})


def test_unknown_name_says_where_it_was_looked_for(tmp_path: Path) -> None:
    environ = {"OLLAMA_MODELS": str(tmp_path), "HF_HUB_CACHE": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}

    for subject, words in (
        (
            "ollama:none",
            f"none:latest: is no file, and not in {tmp_path}; download it with: ollama pull none:latest",
        ),
        ("org/none", f"org/none: is no file, and not in {tmp_path}; add --online"),
        ("none", '"none" is no size, file or name'),
    ):
        with pytest.raises(UnknownModelError, match=words):
            read_subject(subject, environ=environ)


def test_folders_of_lm_studio_and_llama_cpp_are_read_by_path(tmp_path: Path) -> None:
    """LM Studio: PUBLISHER/MODEL/FILE.gguf with its vision tower; llama.cpp: OWNER_MODEL_FILE.gguf."""
    gguf_file(tmp_path / "models/org/model-GGUF/model-Q4_K_M.gguf")
    gguf_file(tmp_path / "models/org/model-GGUF/mmproj-model-F16.gguf", 2)
    gguf_file(tmp_path / "llama.cpp/org_model-GGUF_model-Q4_K_M.gguf")

    seeing = read_subject(str(tmp_path / "models/org/model-GGUF"))
    plain = read_subject(str(tmp_path / "llama.cpp/org_model-GGUF_model-Q4_K_M.gguf"))

    assert (seeing.weights_bytes, plain.weights_bytes) == (144 * 293, 144 * 291)
    assert (Path(seeing.projector).name, plain.projector) == ("mmproj-model-F16.gguf", "")
