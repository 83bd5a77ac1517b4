"""Requests that may wake a sleeping llama-server, by its build and command line, and the bounds of its fields."""

from __future__ import annotations

import json

import pytest

from memwatch.core.engines import llama_cpp
from memwatch.core.engines.command import Command
from memwatch.core.engines.llama_cpp import (
    Generation,
    Listed,
    Props,
    Status,
    allows_metrics,
    allows_models,
    count_cells,
    describe_router,
    find_cells,
    never_sleeps,
)
from memwatch.core.engines.requests import Answers

IDLE = ("llama-server", "-m", "m.gguf", "--sleep-idle-seconds", "300")
UNKNOWN: tuple[str, ...] = ()


def answers(build: str, argv: tuple[str, ...], sleeping: bool | None = None, listed: bool = True) -> Answers:
    """Return the answers of a server. `listed`: that of /models is among them, from an earlier round."""
    props = {"build_info": build, "is_sleeping": sleeping, "total_slots": 1, "model_path": "/m.gguf"}
    bodies = {"/props": json.dumps(props).encode(), **({"/models": b'{"data": []}'} if listed else {})}
    return Answers(bodies, Command(argv))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (UNKNOWN, False),
        (("llama-server", "-m", "m.gguf"), True),
        (IDLE, False),
        (("llama-server", "--sleep-idle-seconds=12"), False),
        (("llama-server", "--sleep-idle-seconds", "-1"), True),
    ],
)
def test_only_a_command_line_without_an_idle_time_proves_that_a_server_never_sleeps(
    argv: tuple[str, ...], expected: bool
) -> None:
    """An idle time of -1 turns the option off."""
    assert never_sleeps(Command(argv)) is expected


@pytest.mark.parametrize(
    ("build", "argv", "sleeping", "metrics", "models"),
    [
        # b7389 is of the week before the option (PR #18228).
        ("b7389-9e6649ecf", UNKNOWN, None, True, True),
        ("b7390-9e6649ecf", UNKNOWN, None, False, False),
        # A fork counts its own commits: a server that reports its state, or has the option, may sleep.
        ("b7389-9e6649ecf", UNKNOWN, False, False, False),
        ("b7389-9e6649ecf", IDLE, None, False, False),
        # PR #18777 made /models harmless in January 2026, and PR #27376 /metrics in August.
        ("b7897-0a1b2c3d4", IDLE, False, False, False),
        ("b7898-0a1b2c3d4", IDLE, False, False, True),
        ("b10620-0a1b2c3d4", IDLE, False, False, True),
        ("b10621-0a1b2c3d4", IDLE, False, True, True),
        ("0.3.0 (build 10621, commit 0a1b2c3d4)", UNKNOWN, False, True, True),
        # A shallow clone counts its few commits.
        ("b999-0a1b2c3d4", UNKNOWN, None, False, False),
        ("b1000-0a1b2c3d4", UNKNOWN, None, True, True),
        # Without the option no build sleeps.
        ("b7500-0a1b2c3d4", ("llama-server", "-m", "m.gguf"), False, True, True),
        ("b10621-0a1b2c3d4", IDLE, True, False, False),
    ],
)
def test_request_is_sent_only_if_it_cannot_wake_the_server(
    build: str, argv: tuple[str, ...], sleeping: bool | None, metrics: bool, models: bool
) -> None:
    found = answers(build, argv, sleeping)

    assert (allows_metrics(found), allows_models(found)) == (metrics, models)


def test_models_of_an_old_build_are_asked_once() -> None:
    assert allows_models(answers("b7500-0a1b2c3d4", IDLE, False, listed=False))
    assert not allows_models(answers("b7500-0a1b2c3d4", IDLE, False))


@pytest.mark.parametrize(
    ("context", "slots", "is_known"),
    [
        (131_072, 4, True),
        (0, 4, False),
        (131_072, 0, False),
        (-1, 1, False),
        (999_999_999, 1, True),
        (1_000_000_000, 1, False),
        (256, 999_999, True),
        (256, 1_000_000, False),
    ],
)
def test_impossible_context_or_slots_are_no_cache(context: int, slots: int, is_known: bool) -> None:
    """No model has a context of a billion tokens, and no server a million slots."""
    props = Props(Generation(context), slots)
    command = Command(("llama-server", "-np", str(slots), "--no-kv-unified"), from_environment=())

    assert (find_cells(props, command) is not None) is is_known


def test_cells_of_all_slots_have_an_upper_bound() -> None:
    props = Props(Generation(900_000_000), 2)
    found = find_cells(props, Command(("llama-server", "-np", "2", "-no-kvu"), from_environment=()))

    assert found is not None
    assert (found.tokens, found.sequences) == (500_000_000, 2)


@pytest.mark.parametrize(
    ("context", "slots", "shared", "options", "cells"),
    [
        # A slot's context is that of the training: --ctx-size decides, rounded up to a multiple of 256.
        (4096, 4, True, ("-c", "9000"), 9216),
        (4096, 4, True, ("-c", "9216"), 9216),
        (4096, 4, True, ("-c", "9217"), 9472),
        # The server rounded --ctx-size up itself, in each slot: 2 x 4608.
        (4608, 2, False, ("-c", "9000"), 9216),
        (9000, 1, True, ("-c", "9000"), 9000),
        # 1000 tokens in 2 slots become 512 in each, but not 256 more in each.
        (512, 2, False, ("-c", "1000"), 1024),
        (756, 2, False, ("-c", "1000"), 1024),
        # Without --ctx-size it is each slot's context, or what --kv-unified-per-slot gives each.
        (4096, 4, True, (), 4096),
        (4096, 4, False, (), 16384),
        (131_072, 4, True, ("--kv-unified-per-slot", "4096"), 16384),
    ],
)
def test_cells_of_a_cache_follow_the_options(
    context: int, slots: int, shared: bool, options: tuple[str, ...], cells: int
) -> None:
    assert count_cells(context, slots, shared, Command(("llama-server", *options))) == cells


@pytest.mark.parametrize(("count", "end"), [(8, "m7."), (9, "m7 and 1 more.")])
def test_router_names_eight_loaded_models(count: int, end: str) -> None:
    listed = [Listed(f"m{number}", Status("loaded")) for number in range(count)]
    (note,) = describe_router(Props(role="router"), listed).notes

    assert note.startswith(f"It is a router, {count} of {count} models loaded: m0, m1, m2, m3, m4, m5, m6, ")
    assert note.endswith(end)


def test_router_is_not_asked_for_figures() -> None:
    """A request for a model's figures loads the model."""
    props = Answers({"/props": b'{"role": "router", "build_info": "b10621-0a1b2c3d4"}'}, Command(IDLE))

    assert llama_cpp.is_router(Props(role="router"))
    assert (allows_metrics(props), allows_models(props)) == (False, True)
