"""Files of a served model, read by the child process with the rights of the server and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from msgspec.structs import replace

from memwatch.core.engines.records import Cache, ModelQuery, ModelSizes, ServedBy
from memwatch.core.linux.process_files import parse_stat
from memwatch.core.printable import printable
from memwatch.planning.served import ServedModel, ServedModels, read_model, size_served
from support.checkpoint_files import safetensors
from support.engine_host import EngineHost
from support.other_user import CAN_SWITCH, OTHER_UID, become_other
from support.waiting import wait_until

SERVER = 60_000  # a user who is neither root nor the one of the tests
KIB = 1 << 10
TENSORS = {"layer": ("I8", [4 * KIB])}
Read = Callable[[ModelQuery], ModelSizes]


def read_as_other(query: ModelQuery) -> ModelSizes:
    """Read as the service as it is installed does: without root, and as a user who is not that of the server."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become_other()
            os.write(sink, msgspec.json.encode(read_model(query)))
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as answers:
        found = answers.read()
    os.waitpid(child, 0)
    return size_served(msgspec.json.decode(found, type=ServedModel), query.cache)


def read_as_child(query: ModelQuery) -> ModelSizes:
    """Read as the daemon does."""
    return ServedModels().size(query)


@pytest.fixture
def host() -> Iterator[EngineHost]:
    """Make a machine that other users may see: pytest's folders are those of one user."""
    with TemporaryDirectory() as folder:
        yield fill(EngineHost(Path(folder)))


def fill(host: EngineHost) -> EngineHost:
    host.add(500, ("vllm", "serve"), uid=SERVER)
    models = host.root / "models"
    models.mkdir(mode=0o755)
    models.chmod(0o755)
    safetensors(models / "open.safetensors", TENSORS).chmod(0o644)
    safetensors(models / "secret.safetensors", TENSORS).chmod(0o600)
    safetensors(models / "group.safetensors", TENSORS).chmod(0o640)
    return host


@pytest.fixture(params=[read_as_child, read_as_other], ids=["child", "service"])
def read(request: pytest.FixtureRequest) -> Read:
    found: Read = request.param
    return found


def query(host: EngineHost, name: str, start: int = 77) -> ModelQuery:
    return ModelQuery(name, None, ServedBy(500, start, str(host.proc), str(host.root)))


def missing(name: str) -> ModelSizes:
    return ModelSizes(note=f"The files of its model ({name}) are not readable here.")


def test_model_that_everyone_may_read_has_its_size(host: EngineHost, read: Read) -> None:
    assert read(query(host, "/models/open.safetensors")) == ModelSizes(4 * KIB)


@pytest.mark.parametrize("name", ["/models/secret.safetensors", "/models/group.safetensors", "/models/link"])
def test_file_of_another_user_answers_as_a_missing_one(host: EngineHost, read: Read, name: str) -> None:
    """The daemon may read all of them: as root, and as a member of their group."""
    (host.root / "models/link").symlink_to("secret.safetensors")
    if CAN_SWITCH:
        os.chown(host.root / "models/group.safetensors", 0, OTHER_UID)
    assert read(query(host, name)) == missing(name)
    assert read(query(host, "/nowhere")) == missing("/nowhere")


@pytest.mark.parametrize("name", ["/etc/shadow", "/outside", "/models/out", "/models/../../outside"])
def test_no_name_leads_out_of_the_root_of_a_container(host: EngineHost, read: Read, name: str) -> None:
    container = host.root / "container"
    (container / "models").mkdir(parents=True)
    (container / "models/out").symlink_to("../../models/open.safetensors")
    (host.root / "outside").write_bytes((host.root / "models/open.safetensors").read_bytes())
    (host.proc / "500/root").unlink()
    (host.proc / "500/root").symlink_to(container)
    assert read(query(host, name)) == missing(name)


def test_own_file_is_read_where_only_its_user_may(host: EngineHost, read: Read) -> None:
    if not CAN_SWITCH:
        host.add(501, ("vllm", "serve"), uid=os.getuid())
    os.chown(host.root / "models/secret.safetensors", SERVER if CAN_SWITCH else os.getuid(), -1)
    by = ServedBy(500 if CAN_SWITCH else 501, 77, str(host.proc), str(host.root))
    found = read(ModelQuery("/models/secret.safetensors", None, by))
    # The service cannot read it either.
    refused = read is read_as_other and CAN_SWITCH
    assert found == (missing("/models/secret.safetensors") if refused else ModelSizes(4 * KIB))


@pytest.mark.parametrize("change", ["set-uid", "set-gid", "no groups", "reused", "ended"])
def test_process_that_may_be_another_one_is_not_believed(host: EngineHost, read: Read, change: str) -> None:
    """The user who starts a set-uid program chooses its name and its command line."""
    status = host.proc / "500/status"
    text = status.read_text()
    uids = f"{SERVER}\t{SERVER}\t{SERVER}\t{SERVER}\n"
    changed = f"{SERVER}\t0\t0\t0\n"
    texts = {
        "set-uid": text.replace(f"Uid:\t{uids}", f"Uid:\t{changed}"),
        "set-gid": text.replace(f"Gid:\t{uids}", f"Gid:\t{changed}"),
        "no groups": text.partition("Groups")[0],
    }
    status.write_text(texts.get(change, text))
    asked = query(host, "/models/open.safetensors", start=78 if change == "reused" else 77)
    if change == "ended":
        status.unlink()
    assert read(asked) == missing("/models/open.safetensors")


@pytest.mark.parametrize(
    ("theirs", "is_read"),
    [
        ("21 1 8:1 / / rw - ext4 /dev/sda1 rw\n", True),
        ("99 1 0:77 / / rw - overlay overlay rw\n", False),
        ("99 1 8:1 /srv/guest / rw - ext4 /dev/sda1 rw\n", False),
        ("", False),
    ],
)
def test_root_that_may_not_be_entered_is_ours_only_with_the_same_file_system(
    host: EngineHost, read: Read, theirs: str, is_read: bool
) -> None:
    """The service may not follow /proc/PID/root of another user."""
    (host.proc / "500/root").unlink()
    (host.proc / "self").mkdir()
    (host.proc / "self/mountinfo").write_text("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    if theirs:
        (host.proc / "500/mountinfo").write_text(theirs)
    name = "/models/open.safetensors"
    assert read(query(host, name)) == (ModelSizes(4 * KIB) if is_read else missing(name))


def test_names_of_one_shard_are_not_counted_twice(host: EngineHost, read: Read) -> None:
    folder = host.root / "models/shards"
    folder.mkdir()
    folder.chmod(0o755)
    first = safetensors(folder / "model-0001.safetensors", TENSORS)
    for number in range(2, 400):
        (folder / f"model-{number:04}.safetensors").symlink_to(first.name)
    found = read(query(host, "/models/shards"))
    assert "is another name of a file that is already counted" in found.note
    assert found == ModelSizes(note=found.note)


def test_pipes_in_place_of_files_do_not_stop_the_reading(host: EngineHost, read: Read) -> None:
    """Opening a pipe waits for its writer."""
    os.mkfifo(host.root / "models/pipe.safetensors", 0o644)
    (host.root / "etc/passwd").unlink()
    os.mkfifo(host.root / "etc/passwd", 0o644)
    assert read(query(host, "/models/pipe.safetensors")) == missing("/models/pipe.safetensors")
    assert read(query(host, "Qwen/Qwen3-32B")) == missing("Qwen/Qwen3-32B")


def test_index_that_names_a_file_of_another_user_says_nothing_of_it(host: EngineHost, read: Read) -> None:
    """The note is that of a shard which is missing."""
    notes = []
    for shard in ("secret.safetensors", "nothing.safetensors"):
        index = host.root / "models/model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"layer": shard}}))
        index.chmod(0o644)
        notes.append(read(query(host, "/models/model.safetensors.index.json")).note.replace(shard, "SHARD"))
    assert notes[0] == notes[1] != ""


def test_model_of_a_process_is_read_once(host: EngineHost) -> None:
    """A server may report another cache in each answer."""
    models, asked = ServedModels(), query(host, "/models/open.safetensors")
    assert models.size(asked) == ModelSizes(4 * KIB)
    (host.root / "models/open.safetensors").unlink()
    note = "The model's shape is not known: no config.json."
    assert models.size(msgspec.structs.replace(asked, cache=Cache("cells", tokens=1))) == ModelSizes(
        4 * KIB, note=note
    )
    assert models.size(query(host, "/models/open.safetensors", start=78)) == missing("/models/open.safetensors")


def test_model_that_could_not_be_read_is_read_again(host: EngineHost) -> None:
    models, path = ServedModels(), host.root / "models/late.safetensors"
    assert models.size(query(host, "/models/late.safetensors")) == missing("/models/late.safetensors")
    safetensors(path, TENSORS).chmod(0o644)
    assert models.size(query(host, "/models/late.safetensors")) == ModelSizes(4 * KIB)


def test_options_file_is_read_with_the_rights_of_the_server(host: EngineHost, read: Read) -> None:
    """One that the server may not read cannot be told from one that does not exist."""
    for name, mode in (("open.yaml", 0o644), ("secret.yaml", 0o600)):
        (host.root / "models" / name).write_text("port: 81\n")
        (host.root / "models" / name).chmod(mode)

    def options(name: str) -> ModelSizes:
        return read(replace(query(host, f"/models/{name}"), is_options=True))

    assert options("open.yaml").options == ("--port", "81")
    assert options("secret.yaml") == missing("/models/secret.yaml")
    assert options("none.yaml") == missing("/models/none.yaml")


NAMES = ("LLAMA_ARG_CACHE_TYPE_K", "LLAMA_ARG_CTX_SIZE")
SECRET = "hf_0123456789"
ENVIRON = {
    "LLAMA_ARG_CACHE_TYPE_K": "q8_0",
    "LLAMA_API_KEY": SECRET,
    "XLLAMA_ARG_CTX_SIZE": "1",
    "HF_TOKEN": SECRET,
}
HIDDEN = ModelSizes(note="Its environment is not readable here.")


def variables(host: EngineHost, content: bytes, uid: int = SERVER) -> ModelQuery:
    """Return the question for the variables of a process. The kernel gives such a file to its user and root."""
    path = host.proc / "500/environ"
    path.write_bytes(content)
    path.chmod(0o400)
    os.chown(path, uid if CAN_SWITCH else -1, -1)
    return replace(query(host, ""), variables=NAMES)


def test_variables_of_a_server_are_read_with_its_rights(host: EngineHost, read: Read) -> None:
    """As the server's user, or as root who becomes that one. The installed service may not."""
    asked = variables(host, b"LLAMA_ARG_CTX_SIZE=4096\0HF_TOKEN=" + SECRET.encode() + b"\0HOME=/root\0")
    refused = read is read_as_other and CAN_SWITCH
    found = read(asked)
    assert found == (HIDDEN if refused else ModelSizes(options=("LLAMA_ARG_CTX_SIZE=4096",)))


def test_environment_of_another_user_stays_unread(host: EngineHost, read: Read) -> None:
    """Root becomes the user of the server first: it reads nothing that this user might not."""
    if CAN_SWITCH:
        assert read(variables(host, b"LLAMA_ARG_CTX_SIZE=4096\0", uid=0)) == HIDDEN
    (host.proc / "500/environ").unlink(missing_ok=True)
    assert read(replace(query(host, ""), variables=NAMES)) == HIDDEN


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", ()),
        (b"LLAMA_ARG_CTX_SIZE\0\0=\0LLAMA_ARG_CTX_SIZE=", ("LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_CTX_SIZE=")),
        (b"LLAMA_ARG_CTX_SIZE=\x1b[2J\xff\0", (printable("LLAMA_ARG_CTX_SIZE=\x1b[2J\ufffd"),)),
        (b"LLAMA_ARG_CTX_SIZE=" + b"9" * 2000, ("LLAMA_ARG_CTX_SIZE=" + "9" * 1005,)),
    ],
)
def test_odd_environment_gives_short_printable_options(
    host: EngineHost, content: bytes, found: tuple[str, ...]
) -> None:
    asked = variables(host, content)
    assert read_as_child(asked).options == found
    assert all(map(str.isprintable, found))


def test_environment_of_a_real_process_gives_its_options_and_no_secret() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=ENVIRON) as process:
        stat = parse_stat(Path(f"/proc/{process.pid}/stat").read_bytes())
        assert stat is not None
        by = ServedBy(process.pid, stat.start_ticks)
        asked = ModelQuery("", by=by, variables=NAMES)
        wait_until(lambda: b"input()" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        answers = [read_as_child(asked), read_as_other(asked)]
        process.communicate(b"\n")
    assert answers == [ModelSizes(options=("LLAMA_ARG_CACHE_TYPE_K=q8_0",)), HIDDEN if CAN_SWITCH else answers[0]]
