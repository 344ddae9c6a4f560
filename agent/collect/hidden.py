"""What somebody else says, without the secrets that we told them: an error page or a proxy may repeat a request.

Owns what counts as the secret of a header. Whoever quotes an answer in a message hides first and cuts afterwards: half a secret at
the cut is found by nobody.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator

HIDDEN = "***"


def hidden(text: str, headers: Iterable[str]) -> str:
    """The text without the values of these headers, their tokens and passwords."""
    for part in secrets_of(headers):
        text = text.replace(part, HIDDEN)
    return text


def secrets_of(headers: Iterable[str]) -> tuple[str, ...]:
    """All that is to be hidden, the longest first: a part of another comes after it."""
    parts = {part for header in headers for part in _parts(header) if part}
    return tuple(sorted(parts, key=len, reverse=True))


def _parts(header: str) -> Iterator[str]:
    scheme, _, value = header.partition(" ")
    yield from (header, value)
    if scheme.lower() == "basic":
        try:
            pair = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, ValueError):
            return
        yield from (pair, pair.partition(":")[2])
