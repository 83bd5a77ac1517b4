"""Malformed and hostile requests as bytes, each with its valid status codes."""

from __future__ import annotations

import contextlib
import ssl

HOST = b"Host: localhost\r\n"
END = b"Connection: close\r\n\r\n"


def request(
    target: bytes = b"/healthz",
    fields: bytes = HOST,
    body: bytes = b"",
    method: bytes = b"GET",
    version: bytes = b"1.1",
) -> bytes:
    return method + b" " + target + b" HTTP/" + version + b"\r\n" + fields + END + body


def client_hello() -> bytes:
    """Return the first message of a TLS client."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def ranges(count: int) -> bytes:
    return b"Range: bytes=" + b",".join(b"%d-%d" % (at, at) for at in range(count)) + b"\r\n"


CHUNKED = b"Transfer-Encoding: chunked\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: "

HOSTILE: dict[str, tuple[bytes, set[int]]] = {
    "HTTP/1.0": (request(version=b"1.0"), {200}),
    "HTTP/1.0 without a Host": (request(fields=b"", version=b"1.0"), {400}),
    "HTTP/0.9": (b"GET /healthz\r\n\r\n", {400}),
    "HTTP/3.7": (request(version=b"3.7"), {400}),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), {400}),
    "TLS": (client_hello(), {400}),
    "SSH": (b"SSH-2.0-OpenSSH_9.9\r\n", {400}),
    "no Host": (request(fields=b""), {400}),
    "two Hosts": (request(fields=HOST + HOST), {400}),
    "two Hosts that differ": (request(fields=HOST + b"Host: evil.example\r\n"), {400}),
    "empty Host": (request(fields=b"Host:\r\n"), {400}),
    "foreign Host": (request(fields=b"Host: evil.example\r\n"), {400}),
    "foreign Host behind an @": (request(fields=b"Host: localhost:1@evil.example\r\n"), {400}),
    "Host of 9 kB": (request(fields=b"Host: " + b"a" * 9000 + b"\r\n"), {400}),
    "Host of bytes": (request(fields=b"Host: \xff\xfe\xe4\r\n"), {400}),
    "absolute URI": (request(b"http://localhost/healthz"), {400}),
    "absolute URI of another": (request(b"http://evil.example/healthz"), {400}),
    "authority": (request(b"localhost:80", method=b"CONNECT"), {400}),
    "asterisk": (request(b"*", method=b"OPTIONS"), {400}),
    "no path": (request(b"?a=b"), {400}),
    "NUL in the path": (request(b"/a\x00b"), {400}),
    "control byte in the path": (request(b"/a\x1bb"), {400}),
    "high byte in the path": (request(b"/a\xe4b"), {400}),
    "escaped control bytes": (request(b"/a%00%0d%0aSet-Cookie:%20a%1b%5b2J"), {404}),
    "escaped garbage": (request(b"/%ff%fe%zz%"), {404}),
    "up and out": (request(b"/static/../../../../etc/passwd"), {404}),
    "up and out, escaped": (request(b"/static/%2e%2e%2f%2e%2e%2fetc%2fpasswd"), {404}),
    "another root": (request(b"//evil.example/%2f.."), {404}),
    "path of 8,000 bytes": (request(b"/" + b"a/" * 4000), {404}),
    "query of 8,000 bytes": (request(b"/api/v1/history?series=" + b"a," * 3980), {422}),
    "URL of 70 kB": (request(b"/healthz?" + b"a" * 70_000), {414}),
    "field of 120 kB": (request(fields=HOST + b"X: " + b"a" * 120_000 + b"\r\n"), {431}),
    "5,000 fields": (request(fields=HOST + b"X: y\r\n" * 5000), {431}),
    "control bytes in a field": (request(fields=HOST + b"X: a\x00b\x01\r\n"), {400}),
    "folded field": (request(fields=HOST + b"X: a\r\n b\r\n"), {400}),
    "space before the colon": (request(fields=HOST + b"X : a\r\n"), {400}),
    "bare line feeds": (b"GET /healthz HTTP/1.1\nHost: localhost\n\n", {400}),
    "unknown method": (request(method=b"BREW"), {400}),
    "small body": (request(fields=HOST + b"Content-Length: 3\r\n", body=b"abc", method=b"POST"), {405}),
    "body on a GET": (request(fields=HOST + b"Content-Length: 3\r\n", body=b"abc"), {200}),
    "body of 65 kB": (
        request(fields=HOST + b"Content-Length: 65537\r\n", body=bytes(65537), method=b"POST"),
        {413},
    ),
    "announced petabyte": (request(fields=HOST + b"Content-Length: 1125899906842624\r\n", method=b"PUT"), {413}),
    "endless length": (request(fields=HOST + b"Content-Length: " + b"9" * 40 + b"\r\n"), {400}),
    "negative length": (request(fields=HOST + b"Content-Length: -1\r\n"), {400}),
    "two lengths": (request(fields=HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n", body=b"abcd"), {400}),
    "length and chunks": (request(fields=HOST + CHUNKED + b"Content-Length: 3\r\n", body=b"abc"), {400}),
    "chunks": (request(fields=HOST + CHUNKED, body=b"3\r\nabc\r\n0\r\n\r\n", method=b"POST"), {411}),
    "garbage chunks": (request(fields=HOST + CHUNKED, body=b"zz\r\n-1\r\n", method=b"POST"), {400, 411}),
    "enormous chunk": (request(fields=HOST + CHUNKED, body=b"f" * 30 + b"\r\n", method=b"POST"), {400, 411}),
    "body gzipped": (request(fields=HOST + b"Transfer-Encoding: gzip\r\n", method=b"POST"), {400, 411}),
    "websocket": (request(fields=HOST + UPGRADE + b"websocket\r\nSec-WebSocket-Key: eA==\r\n"), {200}),
    "upgrade to HTTP/2": (request(fields=HOST + UPGRADE + b"h2c\r\nHTTP2-Settings: AA\r\n"), {200}),
    "range of 1,500 parts": (request(b"/static/app.css", fields=HOST + ranges(1500)), {200, 206, 416}),
    "range of 10,000 parts": (request(b"/static/app.css", fields=HOST + ranges(10_000)), {431}),
    "range backwards": (request(b"/static/app.css", fields=HOST + b"Range: bytes=9-1,-0,x\r\n"), {200, 416}),
    "expectation of the unknown": (request(fields=HOST + b"Expect: a-miracle\r\n"), {200, 417}),
    "Origin of another": (request(fields=HOST + b"Origin: http://evil.example\r\n"), {200}),
    "preflight": (
        request(fields=HOST + b"Origin: null\r\nAccess-Control-Request-Method: PUT\r\n", method=b"OPTIONS"),
        {403},
    ),
}
