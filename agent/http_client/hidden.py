"""What somebody else says, without the secrets that we told them: an error page or a proxy may repeat a request.

Owns what counts as the secret of a header and of an address's query, and in which spellings. Whoever quotes an answer in a message
hides first and cuts afterwards: half a secret at the cut is found by nobody.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote_plus, urlsplit

HIDDEN = "***"

SHORTEST_VALUE = 8
"""Of a query's value that is hidden whatever it is called, and of anything that is hidden in a page."""

SHORTEST_TOLD = 4
"""Of one whose name says that it is a secret; `auth=1` is none."""

_TELLING = re.compile(r"token|key|secret|passw|pwd|auth|credential|sig|session|jwt|bearer|code", re.IGNORECASE)
_WORD = re.compile(r"[a-z_:]*")


def redact(text: str, headers: Iterable[str], url: str = "") -> str:
    """The text without the values of these headers, their tokens and passwords, and what the query of the address holds."""
    for part in secrets_of(headers, url):
        text = text.replace(part, HIDDEN)
    return text


def secrets_of(headers: Iterable[str], url: str = "") -> tuple[str, ...]:
    """All that is to be hidden in a message, the longest first: a part of another comes after it."""
    parts = {part for header in headers for part in _parts(header)}
    parts |= {value for name, value in _asked(url) if len(value) >= (SHORTEST_TOLD if _told(name) else SHORTEST_VALUE)}
    return _spelled(parts)


def unmistakable(headers: Iterable[str], url: str = "") -> tuple[str, ...]:
    """What is to be hidden in a page that is then read: nothing that may be a number, a word or the name of a metric, or a password
    such as `vllm` would change what the page says. Of a query what is called a secret there, for a value may be a model's name."""
    parts = {part for header in headers for part in _parts(header)}
    parts |= {value for name, value in _asked(url) if _told(name)}
    found = _spelled({part for part in parts if len(part) >= SHORTEST_VALUE and not _WORD.fullmatch(part)})
    # A whole header goes with the token in it; each is looked for in all of every page.
    return tuple(one for one in found if not any(other in one for other in found if other != one))


def secret_parameters(url: str) -> tuple[str, ...]:
    """Names in the query of an address that say that their value is a secret."""
    return tuple(dict.fromkeys(name for name, value in _asked(url) if _told(name) and len(value) >= SHORTEST_TOLD))


def _told(name: str) -> bool:
    """Whether the value of a parameter of this name is a secret."""
    return _TELLING.search(name) is not None


def _parts(header: str) -> Iterator[str]:
    scheme, _, value = header.partition(" ")
    yield from (header, value)
    if scheme.lower() == "basic":
        try:
            pair = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, ValueError):
            return
        yield from (pair, pair.partition(":")[2])


def _asked(url: str) -> Iterator[tuple[str, str]]:
    """Names and values of the query, each value as it stands there and as it is meant; one without a name is its own."""
    for pair in re.split("[&;]", urlsplit(url).query):
        name, given, value = pair.partition("=")
        value = value if given else pair
        yield from ((name if given else "", one) for one in (value, unquote_plus(value)))


def _spelled(parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({form for part in parts if part for form in _forms(part)}, key=len, reverse=True))


def _forms(part: str) -> Iterator[str]:
    """As it is, and as it stands in an address, a page of HTML, JSON or a label's value."""
    said = part.encode("utf-8", "replace").decode()
    yield said
    for form in (quote(said, safe=""), quote(said), quote_plus(said)):
        yield from (form, re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), form))
    yield from (html.escape(said), html.escape(said, quote=False), json.dumps(said)[1:-1])
    yield json.dumps(said, ensure_ascii=False)[1:-1].replace("/", "\\/")
    if len(said) >= SHORTEST_VALUE and said.endswith("="):
        # The signs that only fill up a base64 text are the first to be spelled otherwise, or left out.
        yield from _forms(said.rstrip("="))
