"""Models by name from a hub on loopback: what is asked, what is never sent, and what a broken hub does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import memwatch
from memwatch.planning import hub as hub_module
from memwatch.planning.arguments import UnknownModelError
from memwatch.planning.checkpoint import Checkpoint, read_checkpoint
from memwatch.planning.hub import MAX_BYTES, MAX_REQUESTS
from memwatch.planning.model_names import read_subject
from scripts.published_models import MODELS
from support import diffusers_folders
from support.certificates import authority, signed_by
from support.checkpoint_files import LLAMA_KEYS, gguf
from support.client_process import call_memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.http_site import site
from support.model_hub import SHA, ModelHub, running_hub
from support.model_stores import hub_files, hugging_face_cache

NAME = "org/model"
LLAMA = next(one for one in MODELS if one.name == "Llama 3.2 1B")
SECRET = "hf_secretsecretsecret"
SHARDS = 40
INDEX = "model.safetensors.index.json"


def model(folder: Path, shards: int = 2) -> Path:
    """Write a model in shards, one tensor of equal size in each."""
    folder.mkdir(exist_ok=True)
    names = {f"t{part}": f"model-{part:05}-of-{shards:05}.safetensors" for part in range(1, shards + 1)}
    for tensor, name in names.items():
        diffusers_folders.sparse_safetensors(folder / name, {tensor: [LLAMA.parameters // shards]}, "BF16")
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": names}))
    (folder / "config.json").write_text(json.dumps(LLAMA.config))
    return folder


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return model(tmp_path / "files")


@pytest.fixture
def hub(files: Path) -> Iterator[ModelHub]:
    with running_hub(hub_files(files)) as found:
        yield found


def environ(hub: ModelHub, folder: Path, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(folder), "XDG_CACHE_HOME": str(folder / "kept"), **more}


def ask(hub: ModelHub, folder: Path, name: str = NAME, **more: str) -> Checkpoint:
    return read_subject(name, online=True, environ=environ(hub, folder, **more))


def refusal(hub: ModelHub, folder: Path, **more: str) -> str:
    with pytest.raises(UnknownModelError) as caught:
        ask(hub, folder, **more)
    return str(caught.value)


def test_heads_give_the_answer_of_the_files(hub: ModelHub, files: Path, tmp_path: Path) -> None:
    """The list, config.json, the index, and a redirect and a range for each of two shards."""
    assert replace(ask(hub, tmp_path), name="") == replace(read_checkpoint(files), name="")
    assert [(server, wanted) for server, _, wanted, _ in hub.log] == [
        ("hub", ""), ("hub", ""), ("hub", ""),
        ("hub", "bytes=0-49151"), ("storage", "bytes=0-49151"), ("hub", "bytes=0-49151"),
        ("storage", "bytes=0-49151"),
    ]  # fmt: skip


def test_without_online_nothing_is_asked(hub: ModelHub, tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match=r"org/model: is no file, and not in .*; add --online"):
        read_subject(NAME, environ=environ(hub, tmp_path))
    assert hub.log == []


def test_answer_is_kept_for_its_commit(hub: ModelHub, tmp_path: Path) -> None:
    """One request finds out if the branch has moved. Without a network the kept answer is used."""
    first = ask(hub, tmp_path)
    before = len(hub.log)
    again, offline = ask(hub, tmp_path), read_subject(NAME, environ=environ(hub, tmp_path))

    assert first == again == offline
    assert len(hub.log) == before + 1
    hub.sha = "f" * 40
    ask(hub, tmp_path)
    assert len(hub.log) == 2 * before + 1


def test_damaged_kept_answer_is_read_again(hub: ModelHub, tmp_path: Path) -> None:
    first = ask(hub, tmp_path)
    (kept,) = (tmp_path / "kept/memwatch/models").iterdir()
    for text in ('{"version"', kept.read_text().replace(memwatch.__version__, "0.0.1"), "x" * 100_000):
        kept.write_text(text)
        with pytest.raises(UnknownModelError, match="add --online"):
            read_subject(NAME, environ=environ(hub, tmp_path))
    assert ask(hub, tmp_path) == first


def test_token_goes_to_the_hub_and_nowhere_else(hub: ModelHub, tmp_path: Path) -> None:
    """Not to the storage that the hub redirects to, and not into the kept answer."""
    ask(hub, tmp_path, HF_TOKEN=SECRET)

    assert {(server, token) for server, _, _, token in hub.log} == {("hub", f"Bearer {SECRET}"), ("storage", "")}
    assert all(SECRET not in file.read_text() for file in (tmp_path / "kept").rglob("*.json"))


@pytest.mark.parametrize(
    ("status", "token", "words"),
    [
        (
            401,
            "",
            "no such name, or it is gated: check the name, accept its license on its page",
        ),
        (401, SECRET, "it does not accept the token in HF_TOKEN: set another one"),
        (403, "", "it is gated or private: accept its license on its page, and set HF_TOKEN"),
        (403, SECRET, "the owner of the token in HF_TOKEN has no access: accept its license on its page"),
    ],
)
def test_gated_model_says_what_to_do(status: int, token: str, words: str, hub: ModelHub, tmp_path: Path) -> None:
    """With a token its owner knows what to change, and is not told to set one."""
    hub.status["config.json"] = status
    answer = refusal(hub, tmp_path, HF_TOKEN=token)

    assert answer.startswith(f"org/model: the hub answered {status}; {words}")


def test_large_model_is_within_the_limits(tmp_path: Path) -> None:
    """Heads of some of 40 shards; the others count with their header, 80 bytes of 62 MB."""
    files = model(tmp_path / "large", SHARDS)
    with running_hub(hub_files(files)) as hub:
        found = ask(hub, tmp_path)

    true = read_checkpoint(files).weights_bytes
    assert true is not None
    assert found.weights_bytes is not None
    assert len(hub.log) <= MAX_REQUESTS
    assert true < found.weights_bytes < true * 1.00001
    assert found.unknown == ""


def test_header_beyond_the_first_bytes_is_skipped(tmp_path: Path) -> None:
    """The length of the header is in the first 8 bytes."""
    files = tmp_path / "files"
    shapes = {f"layer.{at}.weight": [LLAMA.parameters // 2000] for at in range(2000)}
    diffusers_folders.sparse_safetensors(files / "model.safetensors", shapes, "BF16")
    (files / "config.json").write_text(json.dumps(LLAMA.config))
    with running_hub(hub_files(files, 1 << 16)) as hub:
        assert ask(hub, tmp_path).weights_bytes == read_checkpoint(files).weights_bytes


def test_gguf_of_a_format_is_planned_from_its_first_bytes(tmp_path: Path) -> None:
    """Its tokenizer has 40,000 words, of which 3,000 are read. The size is that of the file."""
    keys = {
        **LLAMA_KEYS,
        "tokenizer.ggml.tokens": [f"word {at:06}" for at in range(40_000)],
        "tokenizer.ggml.merges": ["a b"],
    }
    files = tmp_path / "files"
    files.mkdir()
    for form in ("Q4_K_M", "Q8_0"):
        gguf(files / f"model-{form}.gguf", keys, {"t": (12, [256, 64], 0)}, 9216)
    whole = read_checkpoint(files / "model-Q8_0.gguf")
    with running_hub(hub_files(files)) as hub:
        found = ask(hub, tmp_path, f"{NAME}:Q8_0")

    assert found.transformer == whole.transformer
    assert (found.name, found.context) == ("model-Q8_0.gguf", 4096)
    assert found.weights_bytes == (files / "model-Q8_0.gguf").stat().st_size
    assert sum("Q4_K_M" in path for path in hub.requested) == 0


def test_ignored_range_reads_no_more_than_the_head(hub: ModelHub, files: Path, tmp_path: Path) -> None:
    """The hub sends 2.5 GB from the start; the command ends the connection."""
    hub.knows_ranges = False
    assert ask(hub, tmp_path).weights_bytes == read_checkpoint(files).weights_bytes


def partly_cached(folder: Path) -> Path:
    """Put the same model into a cache, without its second shard."""
    files = model(folder / "partly")
    (files / "model-00002-of-00002.safetensors").unlink()
    return hugging_face_cache(folder, NAME, files)


def test_missing_files_of_a_cached_model_are_measured_on_the_hub(
    hub: ModelHub, files: Path, tmp_path: Path
) -> None:
    """Of the commit in the cache, even if the branch has moved. Without --online it is a lower bound."""
    partly_cached(tmp_path)
    offline = read_subject(NAME, environ=environ(hub, tmp_path))
    assert (offline.unknown[:31], offline.origin, hub.log) == ("1 of its files is missing and n", "", [])

    found = ask(hub, tmp_path)
    assert (found.weights_bytes, found.unknown) == (read_checkpoint(files).weights_bytes, "")
    assert found.origin == f"Measured by its files on the hub: not all of its files are in {tmp_path}."
    assert hub.requested[0].startswith(f"/api/models/{NAME}/revision/{SHA}")


def test_hub_that_does_not_answer_takes_no_cached_file_away(hub: ModelHub, tmp_path: Path) -> None:
    partly_cached(tmp_path)
    hub.status["api"] = 503
    found = ask(hub, tmp_path)

    assert "model-00002-of-00002.safetensors" in found.unknown
    assert found.weights_bytes
    assert "and not found on the hub: org/model@0123" in found.origin
    assert "answered 503; retry later" in found.origin


def test_whole_cached_model_asks_no_hub(hub: ModelHub, tmp_path: Path) -> None:
    hugging_face_cache(tmp_path, NAME, model(tmp_path / "whole"))

    assert ask(hub, tmp_path).origin == ""
    assert hub.log == []


def test_format_that_is_not_cached_is_measured_on_the_hub(tmp_path: Path) -> None:
    """Both are in folders, as in repositories of large models."""
    files = tmp_path / "files"
    for form in ("Q4_K_M", "Q8_0"):
        (files / form).mkdir(parents=True)
        gguf(files / form / f"model-{form}.gguf", LLAMA_KEYS, {"t": (12, [256, 64], 0)}, 9216)
    with running_hub(hub_files(files)) as hub:
        (files / "Q8_0/model-Q8_0.gguf").unlink()
        hugging_face_cache(tmp_path, NAME, files)
        found = ask(hub, tmp_path, f"{NAME}:Q8_0")

    assert found.name == "model-Q8_0.gguf"
    assert "has 1 GGUF models, model-Q4_K_M; 0 of them are Q8_0" in found.origin


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nxx",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 100_000,
        b"no HTTP",
        b"",
    ],
)
def test_answer_that_is_no_http_is_a_refusal(answer: bytes, tmp_path: Path) -> None:
    variables = {"HF_HUB_CACHE": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    with site(answer) as port, pytest.raises(UnknownModelError, match="is cut off, or is not HTTP"):
        read_subject(NAME, online=True, environ={"HF_ENDPOINT": f"http://127.0.0.1:{port}", **variables})


def test_missing_sizes_come_from_the_heads(hub: ModelHub, files: Path, tmp_path: Path) -> None:
    hub.has_sizes = False
    found = ask(hub, tmp_path)
    assert (found.weights_bytes, found.unknown) == (read_checkpoint(files).weights_bytes, "")


def test_shards_of_unknown_size_are_a_lower_bound(tmp_path: Path) -> None:
    with running_hub(hub_files(model(tmp_path / "files", SHARDS))) as hub:
        hub.has_sizes = False
        found = ask(hub, tmp_path)
    assert "of its files are missing and not counted: model-000" in found.unknown


def test_file_that_the_index_names_and_the_hub_lacks_is_a_lower_bound(hub: ModelHub, tmp_path: Path) -> None:
    del hub.files["model-00002-of-00002.safetensors"]
    found = ask(hub, tmp_path)
    assert found.unknown == "1 of its files is missing and not counted: model-00002-of-00002.safetensors."


SHARD = "model-00001-of-00002.safetensors"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda hub: hub.status.update({SHARD: 416}), "the hub answered 416"),
        (lambda hub: hub.status.update(api=404), "the hub answered 404; check the name and the revision"),
        (lambda hub: hub.status.update(api=503), "the hub answered 503; retry later"),
        (lambda hub: hub.cut.add(SHARD), "cut off"),
        (lambda hub: hub.cut.add("config.json"), "cut off"),
        (lambda hub: hub.redirects.update({SHARD: f"{hub.url}/org/model/resolve/{hub.sha}/{SHARD}"}), "redirects"),
        (lambda hub: hub.redirects.update({SHARD: "file:///etc/passwd"}), "not an address with http"),
        (lambda hub: hub.redirects.update({SHARD: "http://[::1"}), "redirects to what is no address"),
        (lambda hub: hub.redirects.update({SHARD: "http://127.0.0.1:99999/"}), "is not the address of a server"),
        (lambda hub: hub.redirects.update({SHARD: "http://a@127.0.0.1/"}), "without a login"),
        (lambda hub: hub.sizes.update({SHARD: 1 << 70}), "impossible values|not readable"),
        (lambda hub: hub.sizes.update({SHARD: -1}), "impossible values"),
        (lambda hub: hub.sizes.update({SHARD: 60}), "is not a safetensors file of 60 bytes"),
        (lambda hub: hub.sizes.update({SHARD: 1 << 40}), "its tensors take"),
        (lambda hub: hub.files.update({SHARD: (b"\xff" * 100, 100)}), "is not a safetensors file of 100 bytes"),
        (lambda hub: hub.files.update({SHARD: (b"", 0)}), "is not a safetensors file|answered|HTTP"),
        (lambda hub: hub.files.update({"config.json": (b"[" * 900_000, 900_000)}), "at most"),
        (lambda hub: hub.files.update({"config.json": (b"{", 1)}), "is not readable JSON"),
        (lambda hub: setattr(hub, "sha", "../../x"), "impossible values"),
        (lambda hub: hub.files.update({f"{at:0200}.bin": (b"", 0) for at in range(3000)}), "at most"),
    ],
)  # fmt: skip
def test_broken_hub_is_a_reason(change: object, words: str, hub: ModelHub, tmp_path: Path) -> None:
    assert callable(change)
    change(hub)
    with pytest.raises(UnknownModelError, match=words) as caught:
        ask(hub, tmp_path, HF_TOKEN=SECRET)
    assert SECRET not in str(caught.value)
    assert len(hub.log) <= MAX_REQUESTS


def test_hub_that_does_not_end_is_left(hub: ModelHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "SECONDS", 0.2)
    hub.silent.add("config.json")

    assert "127.0.0.1 did not answer within 0.2 s" in refusal(hub, tmp_path)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"HF_ENDPOINT": "http://127.0.0.1:1"}, "cannot reach 127.0.0.1 (connection refused)"),
        ({"HF_ENDPOINT": "ftp://hub.example"}, "HF_ENDPOINT or a redirect is not an address with http or https"),
        ({"HF_ENDPOINT": "http://hub.example", "HF_TOKEN": SECRET}, "HF_TOKEN is not sent without TLS"),
        ({"HF_TOKEN": "a\r\nHost: x"}, "HF_TOKEN is not a token"),
    ],
)
def test_address_and_token_are_checked_first(
    more: dict[str, str], words: str, hub: ModelHub, tmp_path: Path
) -> None:
    answer = refusal(hub, tmp_path, **more)
    assert words in answer
    assert more.get("HF_TOKEN", SECRET) not in answer
    assert hub.log == []


def test_hub_with_tls_needs_a_trusted_certificate(
    hub: ModelHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redirect from TLS to none is not followed."""
    import ssl

    ca = authority(tmp_path)
    made = signed_by(ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert, made.key)
    hub.hub.socket = context.wrap_socket(hub.hub.socket, server_side=True)
    secure = {"HF_ENDPOINT": f"https://localhost:{hub.hub.server_port}", "HF_TOKEN": SECRET}

    assert "certificate verify failed" in refusal(hub, tmp_path, **secure)
    monkeypatch.setenv("SSL_CERT_FILE", str(ca.cert))
    assert "redirects to an address without TLS" in refusal(hub, tmp_path, **secure)
    assert {server for server, *_ in hub.log} == {"hub"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon"), "--demo", "dgx-spark") as running:
        yield running


def test_command_answers_by_name(daemon: RunningDaemon, hub: ModelHub, tmp_path: Path) -> None:
    """With the exit code of an answer, and 3 with one line where the hub does not answer."""
    variables = environ(hub, tmp_path, HF_TOKEN=SECRET)
    command = ("--url", daemon.url, "fit", NAME)
    before = call_memwatch(*command, **variables)
    found = call_memwatch(*command, "--online", "--launch", "vllm", **variables)
    kept = call_memwatch(*command, "--json", **variables)
    hub.status["api"] = 503
    silent = call_memwatch("--url", daemon.url, "fit", f"{NAME}@v2", "--online", **variables)

    assert (before.returncode, before.stdout) == (3, "")
    assert found.returncode == kept.returncode == 0
    assert found.stdout.startswith("org/model needs ")
    assert "vllm serve org/model" in found.stdout
    assert json.loads(kept.stdout)["parts"]["weights"] == 2 * LLAMA.parameters
    assert (silent.returncode, silent.stdout, silent.stderr.count("\n")) == (3, "", 1)
    assert "org/model@v2: the hub answered 503; retry later" in silent.stderr
    assert SECRET not in found.stdout + found.stderr + silent.stderr


def test_daemon_does_not_take_names(daemon: RunningDaemon, hub: ModelHub) -> None:
    """Its API and page go nowhere: a name is read by the command, with the rights of its user."""
    for query in (f"bytes={NAME}", f"model={NAME}", f"subject={NAME}"):
        assert daemon.get(f"/api/v1/fit?{query}").status == 422
        assert daemon.get(f"/fit?{query}").status == 422
    assert hub.log == []


def test_library_goes_online_only_if_it_is_told_to(
    daemon: RunningDaemon, hub: ModelHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ(hub, tmp_path, MEMWATCH_URL=daemon.url).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnknownModelError, match="online=True"):
        memwatch.fit(NAME)
    assert hub.log == []
    assert memwatch.fit(NAME, online=True).need.parts["weights"] == 2 * LLAMA.parameters
    assert MAX_BYTES == 1_000_000
