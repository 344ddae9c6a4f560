"""Reply to a request: status, type, body, and the headers of every answer."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from email.utils import formatdate

from agent.http_server.request_head import is_gzip_accepted

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a route answers; its `headers` take the place of those of every answer."""

    status: str
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def text_reply(status: str, text: str, *headers: tuple[str, str]) -> Reply:
    """Return a line for people."""
    return Reply(status=status, content_type=TEXT, body=f"{text}\n".encode(), headers=headers)


def busy_reply(text: str) -> Reply:
    """Return the answer to a request that may succeed a second later."""
    return text_reply("503 Service Unavailable", text, ("Retry-After", "1"))


def finish_reply(reply: Reply, accept_encoding: str) -> tuple[list[tuple[str, str]], bytes]:
    """Return all headers and the body, compressed where the client accepts it."""
    body, own = reply.body, {name for name, _ in reply.headers}
    everywhere = [(name, value) for name, value in HEADERS if name not in own]
    headers = [("Content-Type", reply.content_type), *everywhere, *reply.headers]
    if len(body) >= COMPRESSED_FROM_BYTES and not reply.content_type.startswith("image/"):
        headers.append(("Vary", "Accept, Accept-Encoding"))
        if is_gzip_accepted(accept_encoding):
            # The fastest level: a page of metrics shrinks to a tenth, and this machine has better things to do.
            body = gzip.compress(body, compresslevel=1, mtime=0)
            headers.append(("Content-Encoding", "gzip"))
    return [*headers, ("Content-Length", str(len(body)))], body


def encode_reply(reply: Reply, method: str = "GET") -> bytes:
    """Return the whole answer as bytes, for one that no worker makes. The connection ends after it."""
    headers, body = finish_reply(reply, "")
    ends = (("Connection", "close"), ("Date", formatdate(usegmt=True)), ("Server", SERVER_NAME))
    lines = (f"HTTP/1.1 {reply.status}", *(f"{name}: {value}" for name, value in (*headers, *ends)), "", "")
    return "\r\n".join(lines).encode("latin-1") + (b"" if method == "HEAD" else body)
