"""A llama-server that unloads its idle model, on a clock of the test.

Each task loads the model again and restarts the idle time: tools/server/server-queue.cpp, PR #18228. GET /health
and /props are no tasks, /models is none since January 2026 (about b7700), /metrics since 19 August 2026 (PR #27376,
about b10500).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from support import engine_texts
from support.engine_servers import Answer, Handler

NO_TASK = {"/health": 0, "/props": 0, "/models": 7700, "/metrics": 10500}
# Builds of ik_llama.cpp have numbers of their own. /health has the state of sleep. All but these paths load the
# model of a sleeping server, /props as well; while it is awake they are no tasks (its PR #2383).
IK_BUILD, IK_HARMLESS = 4400, ("/health", "/metrics")


class LlamaServer:
    """`wakes` are the paths that loaded the model again. `idle_seconds`: 0 if it never sleeps."""

    def __init__(self, now: Callable[[], float], build: int, idle_seconds: float) -> None:
        self.now, self.build, self.idle_seconds = now, build, idle_seconds
        self.wakes: list[str] = []
        self._active_at = now()
        self._texts = engine_texts.llama_cpp()

    @property
    def is_sleeping(self) -> bool:
        return bool(self.idle_seconds) and self.now() - self._active_at >= self.idle_seconds

    def use(self, path: str = "/completion") -> None:
        """Do a task."""
        if self.is_sleeping:
            self.wakes.append(path)
        self._active_at = self.now()

    def answers(self) -> Mapping[str, Answer]:
        return {path: self._answer(path) for path in ("/props", "/models", "/metrics", "/slots", "/health")}

    def _answer(self, path: str) -> Answer:
        def reply(handler: Handler) -> None:
            if self._is_task(path):
                self.use(path)
            own = {"/props": self._props, "/health": self._health}
            handler.reply(200, own[path]() if path in own else self._texts.get(path, b"{}"))

        return reply

    def _is_task(self, path: str) -> bool:
        if self.build == IK_BUILD:
            return self.is_sleeping and path not in IK_HARMLESS
        return self.build < NO_TASK.get(path, 1 << 30)

    def _health(self) -> bytes:
        is_told = self.build == IK_BUILD and self.is_sleeping
        return json.dumps({"status": "ok"} | ({"sleeping": True} if is_told else {})).encode()

    def _props(self) -> bytes:
        props = json.loads(self._texts["/props"]) | {"build_info": f"b{self.build}-6ee0f6579"}
        props["is_sleeping"] = self.is_sleeping
        if self.build < 7490:
            del props["is_sleeping"]
        return json.dumps(props).encode()
