"""`memwatch mcp` with the client of the MCP SDK: once over stdio, then in memory, which saves 2 s a call."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from memwatch.cli.context import ClientContext
from memwatch.cli.http import parse_url
from support.client_process import SCRIPT
from support.daemon_process import RunningDaemon, clean_environment
from support.shared_daemons import SharedDaemons
from support.waiting import MAX_WAIT_SECONDS

if TYPE_CHECKING:  # the SDK takes an eighth of the time of importing all test files, in each worker
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

TOOLS = {"memory_status", "memory_holders", "will_it_fit", "memory_history", "incidents"}
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def daemon(shared_daemons: SharedDaemons) -> RunningDaemon:
    return shared_daemons.demo("dgx-spark")


def client_of(server: Any) -> Client:
    from mcp import Client

    return Client(server)


def server_of(url: str) -> StdioServerParameters:
    from mcp.client.stdio import StdioServerParameters

    return StdioServerParameters(command=SCRIPT[0], args=["--url", url, "mcp"], env=clean_environment())


def call(url: str, tool: str, **arguments: Any) -> Any:
    """Return the result of a tool, called by the SDK's client."""
    from memwatch.cli._mcp_tools import create_server

    async def talk() -> Any:
        async with client_of(create_server(ClientContext(parse_url(url), True, True))) as client:
            return await client.call_tool(tool, arguments)

    return asyncio.run(asyncio.wait_for(talk(), 60))


def answer(daemon: RunningDaemon, tool: str, **arguments: Any) -> Any:
    result = call(daemon.url, tool, **arguments)
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


def refusal(url: str, tool: str, **arguments: Any) -> str:
    result = call(url, tool, **arguments)
    assert result.is_error
    text: str = result.content[0].text
    assert "Traceback" not in text
    return text


def test_tools_over_stdio_are_read_only_and_answer(daemon: RunningDaemon) -> None:
    async def talk() -> Any:
        async with client_of(server_of(daemon.url)) as client:
            return await client.list_tools(), client.instructions, await client.call_tool("memory_status", {})

    listed, instructions, status = asyncio.run(asyncio.wait_for(talk(), 60))

    assert {tool.name for tool in listed.tools} == TOOLS
    assert all(tool.annotations.read_only_hint and tool.description for tool in listed.tools)
    assert status.structured_content["pools"][0]["label"] == "System RAM"
    assert "never add it to anything" in " ".join(instructions.split())


def test_status_has_pools_shares_and_a_sentence(daemon: RunningDaemon) -> None:
    found = answer(daemon, "memory_status")

    (pool,) = found["pools"]
    (share,) = [one for one in found["shares"] if one["kind"] == "cuda_pool"]
    assert (pool["label"], share["within"]) == ("System RAM", pool["id"])
    assert pool["used_bytes"] + pool["available_bytes"] == pool["size_bytes"]
    assert "System RAM is" in found["summary"][0]
    assert found["simulated"] is True


@pytest.mark.parametrize("group", ["process", "unit", "container", "user"])
def test_holders_are_sorted_and_limited(daemon: RunningDaemon, group: str) -> None:
    found = answer(daemon, "memory_holders", group=group, limit=2)

    assert 1 <= len(found["holders"]) <= 2
    sizes = [one["footprint_low_bytes"] for one in found["holders"]]
    assert sizes == sorted(sizes, reverse=True)


def test_holder_of_gpu_memory_is_listed_before_one_of_more_resident_memory(shared_daemons: SharedDaemons) -> None:
    """A snapshot has the processes by resident memory."""
    demo = shared_daemons.demo("rtx4090")
    listed = [one["name"] for one in demo.snapshot()["processes"]]
    names = [one["name"] for one in answer(demo, "memory_holders", limit=5)["holders"]]

    assert listed.index("gnome-shell") < listed.index("Xorg")
    assert names.index("Xorg") < names.index("gnome-shell")


def test_fit_of_a_size_and_of_a_model_tells_where(daemon: RunningDaemon) -> None:
    small = answer(daemon, "will_it_fit", subject="1GiB")
    large = answer(daemon, "will_it_fit", subject="4TiB")

    assert small["best"]
    assert not large["best"]
    assert small["summary"]


def test_history_has_the_use_of_each_pool(daemon: RunningDaemon) -> None:
    found = answer(daemon, "memory_history", seconds=60, points=5)

    (series,) = found["series"]
    assert series["unit"] == "bytes"
    assert any(series["max"])


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        ("memory_holders", {"group": "planet"}, "planet"),
        ("memory_holders", {"limit": 100_000}, "50"),
        ("will_it_fit", {"subject": "/nowhere/model"}, "/nowhere/model"),
        ("will_it_fit", {"subject": "1GiB", "dtype": "q99"}, "q99"),
        ("will_it_fit", {"subject": "/etc/passwd\0.gguf"}, "has a NUL"),
        ("will_it_fit", {"subject": "/proc/self/environ"}, "is not a .safetensors or .gguf file"),
        ("will_it_fit", {"subject": "a" * 5000}, "file name too long"),
        ("memory_history", {"series": ["no.such.series"]}, "no.such.series"),
        ("incidents", {"incident_id": "../snapshot"}, "rejected the request"),
    ],
)
def test_bad_arguments_get_a_sentence(
    daemon: RunningDaemon, tool: str, arguments: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal(daemon.url, tool, **arguments)


def test_unreachable_daemon_is_named() -> None:
    text = refusal(NOWHERE, "memory_status")

    assert f"cannot reach memwatchd at {NOWHERE}" in text


def test_input_that_is_no_mcp_ends_without_a_traceback(daemon: RunningDaemon) -> None:
    done = subprocess.run(
        [*SCRIPT, "--url", daemon.url, "mcp"],
        input=b"hello\n{}\n\x00\xff",
        env=clean_environment(),
        capture_output=True,
        timeout=MAX_WAIT_SECONDS,
        check=False,
    )

    assert b"Traceback" not in done.stderr
    assert done.returncode == 0
