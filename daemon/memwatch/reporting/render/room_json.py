"""Answers about room as JSON: /api/v1/room and `memwatch room --json`."""

from __future__ import annotations

from memwatch.core.wire import Json, Shape, Wire
from memwatch.reporting.render.room import RoomAnswer, RoomStep, RoomTarget

ROOM = Wire((Shape(RoomAnswer, "Room"), Shape(RoomTarget), Shape(RoomStep)))


def room_json(found: RoomAnswer) -> Json:
    return ROOM.encode(found)
