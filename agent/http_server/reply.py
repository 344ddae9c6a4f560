"""Reply to a request: status, type, body, and the headers of every answer."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from email.utils import formatdate

from agent.http_server.request_head import is_gzip_accepted
from rules.light_dataclass import light_dataclass

TEXT = "text/plain; charset=utf-8"
COMPRESSED_FROM_BYTES = 2_048

SERVER_NAME = "sizewatch"
"""Without a version: the name is on every page anyway."""

HEADERS: tuple[tuple[str, str], ...] = (
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)


_GZIP = zlib.MAX_WBITS | 16
"""Window bits of zlib for gzip's format."""


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a route answers; its `headers` take the place of those of every answer.

    `parts` are a body that is made while it is sent, in place of `body`. Its length is not known before. No part waits for
    its reader: the connection holds what a slow one has not taken, without gzip perhaps megabytes.
    """

    status: str
    content_type: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    parts: Iterator[bytes] | None = None


def text_reply(status: str, text: str, *headers: tuple[str, str]) -> Reply:
    """Return a line for people."""
    return Reply(status=status, content_type=TEXT, body=f"{text}\n".encode(), headers=headers)


def busy_reply(text: str) -> Reply:
    """Return the answer to a request that may succeed a second later."""
    return text_reply("503 Service Unavailable", text, ("Retry-After", "1"))


def finish_reply(reply: Reply, accept_encoding: str) -> tuple[list[tuple[str, str]], Iterable[bytes]]:
    """Return all headers and the body in parts, compressed where the client accepts it."""
    body, parts, own = reply.body, reply.parts, {name for name, _ in reply.headers}
    everywhere = [(name, value) for name, value in HEADERS if name not in own]
    headers = [("Content-Type", reply.content_type), *everywhere, *reply.headers]
    is_long = parts is not None or len(body) >= COMPRESSED_FROM_BYTES
    if is_long:
        headers.append(("Vary", "Accept, Accept-Encoding"))
        if is_gzip_accepted(accept_encoding):
            headers.append(("Content-Encoding", "gzip"))
            # The fastest level: a page of metrics shrinks to a tenth, and this machine has better things to do.
            if parts is None:
                body = b"".join(_pack((body,)))
            else:
                parts = _pack(parts)
    return (headers, parts) if parts is not None else ([*headers, ("Content-Length", str(len(body)))], (body,))


def _pack(parts: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(1, wbits=_GZIP)
    for part in parts:
        yield packer.compress(part)
    yield packer.flush()


def encode_reply(reply: Reply, method: str = "GET") -> bytes:
    """Return the whole answer as bytes, for one that no worker makes. The connection ends after it."""
    headers, parts = finish_reply(reply, "")
    ends = (("Connection", "close"), ("Date", formatdate(usegmt=True)), ("Server", SERVER_NAME))
    lines = (f"HTTP/1.1 {reply.status}", *(f"{name}: {value}" for name, value in (*headers, *ends)), "", "")
    return "\r\n".join(lines).encode("latin-1") + (b"" if method == "HEAD" else b"".join(parts))
