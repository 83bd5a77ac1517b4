"""Compressed streams: every client decodes exactly the chunks of its ticks, whichever ticks it missed."""

from __future__ import annotations

import random
import zlib
from typing import Any, cast

import pytest

from memwatch.core.snapshot import Snapshot
from memwatch_web.asgi.latest_snapshot import RenderCache
from memwatch_web.asgi.sse import Gzip, SharedDeflate, deflate

GZIP = 31


class Tick:
    """Stands for a snapshot: streams compare snapshots by identity and hand them to the renderer."""

    def __init__(self, number: int, size: int) -> None:
        rows = (f"<tr><td>{row}</td><td>{row * 7919 % 100}</td></tr>" for row in range(size))
        self.text = f"event: x\ndata: <b>{number}</b>{''.join(rows)}\n\n".encode()


def shared_deflate() -> SharedDeflate:
    return SharedDeflate(RenderCache(lambda tick: cast("Any", tick).text))


def tick(number: int, size: int = 700) -> Snapshot:
    return cast("Snapshot", Tick(number, size))


def text_of(one: Snapshot) -> bytes:
    return cast("Tick", cast("object", one)).text


class Client:
    def __init__(self, shared: SharedDeflate) -> None:
        self.encoder = Gzip(shared)
        self.inflater = zlib.decompressobj(GZIP)
        self.got, self.wanted = self.inflater.decompress(self.encoder.head), b""

    def take(self, one: Snapshot) -> int:
        return self._add(self.encoder.tick(one), text_of(one))

    def comment(self, text: bytes) -> int:
        return self._add(self.encoder.comment(text), text)

    def _add(self, piece: bytes, text: bytes) -> int:
        """Decode a piece at once, as a browser does, and return its size."""
        self.got += self.inflater.decompress(piece)
        self.wanted += text
        assert self.got == self.wanted
        return len(piece)

    def end(self) -> None:
        self.got += self.inflater.decompress(self.encoder.end())
        assert self.inflater.eof  # checksum and size were right
        assert self.got == self.wanted


@pytest.mark.parametrize("size", [3, 700, 4000], ids=["small", "a page", "more than a window"])
def test_clients_that_miss_different_ticks_decode_the_same_text(size: int) -> None:
    choose = random.Random(1)
    shared = shared_deflate()
    clients = [Client(shared) for _ in range(5)]

    for number in range(40):
        one = tick(number, size + number % 3)
        for client in clients:
            if choose.random() < 0.7:
                client.take(one)
            elif choose.random() < 0.3:
                client.comment(b": nothing new\n\n")
    for client in clients:
        client.end()


def test_next_tick_takes_a_thirtieth_of_the_page() -> None:
    client = Client(shared_deflate())
    first, second = tick(1), tick(2)

    alone = client.take(first)
    continued = client.take(second)

    assert continued < len(text_of(second)) / 30
    assert continued < alone / 3


def paged(number: int, *parts: str) -> Snapshot:
    """Return a tick whose page has these parts."""
    one = Tick(number, 3)
    marked = "".join(
        f'<!--part--><section class="card" id="part-{at}">{text}</section><!--/part-->'
        for at, text in enumerate(parts)
    )
    one.text = f"event: x\ndata: <b>{number}</b>{marked}\n\n".encode()
    return cast("Snapshot", one)


def test_part_that_has_not_changed_is_sent_as_an_empty_element() -> None:
    """A client that missed the tick before gets the whole page, and each decodes what it was sent."""
    shared = shared_deflate()
    early, late = Gzip(shared), Gzip(shared)
    found = zlib.decompressobj(GZIP)
    found.decompress(early.head)
    found.decompress(early.tick(paged(1, "same", "one")))
    second, third = paged(2, "same", "two"), paged(3, "same", "two")

    assert found.decompress(early.tick(second)) == (
        b'event: x\ndata: <b>2</b><section id="part-0" data-same></section>'
        b'<!--part--><section class="card" id="part-1">two</section><!--/part-->\n\n'
    )
    other = zlib.decompressobj(GZIP)
    other.decompress(late.head)
    assert other.decompress(late.tick(second)) == text_of(second)
    for encoder, inflater in ((early, found), (late, other)):
        assert inflater.decompress(encoder.tick(third)) == (
            b'event: x\ndata: <b>3</b><section id="part-0" data-same></section>'
            b'<section id="part-1" data-same></section>\n\n'
        )
        inflater.decompress(encoder.end())
        assert inflater.eof  # checksum and size were right


def test_tick_is_compressed_once_for_all_clients() -> None:
    shared = shared_deflate()
    clients = [Client(shared) for _ in range(3)]
    first, second = tick(1), tick(2)

    pieces = [[client.encoder.tick(one) for client in clients] for one in (first, second)]

    for same in pieces:
        assert all(piece is same[0] for piece in same)


def test_late_client_starts_with_a_piece_of_its_own() -> None:
    shared = shared_deflate()
    early, late = Client(shared), Client(shared)
    early.take(tick(1))
    second = tick(2)

    assert early.take(second) * 3 < late.take(second)


def test_stream_without_a_tick_is_a_whole_gzip_file() -> None:
    Client(shared_deflate()).end()


def test_pieces_end_at_a_byte() -> None:
    whole = zlib.decompressobj(-15)

    assert whole.decompress(deflate(b"one ") + deflate(b"two", b"one ")) == b"one two"
