"""What a route of the web server answers: status, type, body, headers.

Owns the record and the plainest of answers. Who is let through and what is added to every answer is `agent.http_server.server`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a route answers; its `headers` take the place of those of every answer."""

    status: str
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def text_reply(status: str, text: str) -> Reply:
    """A line for people."""
    return Reply(status=status, content_type=TEXT, body=f"{text}\n".encode())
