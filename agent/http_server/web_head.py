"""Whether of a request so much is there that a worker can answer it without waiting.

Owns the look at bytes as they come, and only to know how many more are worth waiting for: what they mean, and whether they are
HTTP at all, is cheroot's and `agent.http_server.server`'s. To be wrong here costs a worker a moment
(`agent.http_server.server`) and nothing else.
"""

from __future__ import annotations

import re

MOST_BODY_BYTES = 65_536
"""Of a body that is waited for: a sender that is refused then learns why. A longer one its worker reads, once it may be sent."""

_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"\ncontent-length[ \t]*:[ \t]*([0-9]{1,12})[ \t]*(?=\r?\n)", re.IGNORECASE)
_EXPECTS = re.compile(rb"\nexpect[ \t]*:", re.IGNORECASE)


def is_head_complete(held: bytes | bytearray) -> bool:
    """Whether the line is there that ends a request's head."""
    return _END.search(held) is not None


def missing(held: bytes | bytearray, most_head_bytes: int, most_body_bytes: int) -> int:
    """How many bytes more are to be waited for, at most; 0: none. A head or a body beyond the limits is there as soon as that is
    known, and so is the head of a client that sends its body only once it is told to."""
    end = _END.search(held)
    if end is None:
        return max(0, most_head_bytes + 1 - len(held))
    head = bytes(held[: end.end()])
    length = max((int(found) for found in _LENGTH.findall(head)), default=0)
    if length > most_body_bytes or _EXPECTS.search(head):
        return 0
    return max(0, end.end() + min(length, MOST_BODY_BYTES) - len(held))
