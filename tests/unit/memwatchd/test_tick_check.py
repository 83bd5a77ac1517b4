"""The event loop checks the tick thread without a wake-up for it, and reports its end soon."""

from __future__ import annotations

import asyncio
from typing import cast

from memwatch_monitor.loop import Monitor
from memwatchd.liveness import PING_SECONDS, TICK_CHECK_SECONDS, TickCheck
from support.virtual_loop import run_virtual


class Loop:
    """A monitor whose last snapshot is always new, and counted checks of its thread."""

    interval_seconds = 1.0

    def __init__(self) -> None:
        self.rules, self.checks, self.is_alive, self.left_at = self, 0, True, -1.0

    def age_seconds(self) -> float:
        return 0.0

    def check(self) -> bool:
        self.checks += 1
        return self.is_alive


async def watch(ticks: Loop, pings: int, alone_seconds: float) -> None:
    """Ping as ticks one second apart do, and then no longer."""
    loop = asyncio.get_running_loop()

    def leave() -> None:
        ticks.left_at = loop.time()

    check = TickCheck(loop, cast("Monitor", ticks), ticks.check, leave)
    check.schedule()
    for _ in range(pings):
        await asyncio.sleep(PING_SECONDS + 1.0)
        check.on_ping()
    ticks.is_alive = alone_seconds == 0
    await asyncio.sleep(alone_seconds)


def test_loop_wakes_for_no_check_while_ticks_ping() -> None:
    ticks = Loop()
    run_virtual(watch(ticks, 100, 0.0))

    assert ticks.checks == 0


def test_end_of_the_tick_thread_is_noticed_after_its_last_ping() -> None:
    ticks = Loop()
    run_virtual(watch(ticks, 3, 60.0))

    assert ticks.left_at == 3 * (PING_SECONDS + 1.0) + TICK_CHECK_SECONDS
    assert ticks.checks == 1
