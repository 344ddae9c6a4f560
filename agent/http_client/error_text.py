"""Error texts of HTTP requests, and the redaction of secrets that a response may repeat.

Exceptions of urllib3, ssl and the operating system become a ScrapeError with a hint. No text contains a
header, a query or the content of a file. Add a status to `_STATUSES`, a TLS verification code to `_UNTRUSTED`.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
import ssl
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote_plus, urlsplit

import urllib3

from agent.errors import ScrapeError, ScrapeFailure
from exporters.render.text import quote_external_text

HIDDEN = "***"
SHORTEST_VALUE = 8
"""Minimum length of a hidden query value of any name, and of any text hidden in a page."""

SHORTEST_NAMED = 4
"""Minimum length of a hidden query value with the name of a secret: `auth=1` is none."""

_SECRET_NAME = re.compile(r"token|key|secret|passw|pwd|auth|credential|sig|session|jwt|bearer|code", re.IGNORECASE)
_WORD = re.compile(r"[a-z_:]*")
_REDIRECTIONS = (301, 302, 303, 307, 308)
_STATUSES = {
    401: (ScrapeFailure.AUTH, "set bearer_token_file, or username and password_file, or renew what is in them"),
    403: (ScrapeFailure.AUTH, "these credentials may not read the metrics"),
    404: (
        ScrapeFailure.HTTP_STATUS,
        "is the path right? vLLM and SGLang (with --enable-metrics) use /metrics, trtllm-serve /prometheus/metrics",
    ),
}
_NAME_A_CA = "name the CA that signed it in ca_file"
# X509_V_ERR_* of OpenSSL's x509_vfy.h
_UNTRUSTED = {
    7: f"is signed by a different key than that of the trusted CA of this name; {_NAME_A_CA}",
    10: "has expired",
    18: f"is self-signed; {_NAME_A_CA}, which may be the certificate itself",
    19: f"leads to a self-signed CA that is not trusted; {_NAME_A_CA}",
    20: f"is signed by a CA that is not trusted; {_NAME_A_CA}",
    21: f"is signed by a CA that is not trusted; {_NAME_A_CA}",
    62: "is for another host name",
    64: "is for another IP address",
}
_CONTENT_HINTS = {
    "json": (
        "is JSON, not a page of metrics; trtllm-serve exposes its metrics at /prometheus/metrics, not at /metrics,"
        " and only with return_perf_metrics: true in its options"
    ),
    "html": "is an HTML page; is there a login, a proxy or a web interface at this address, or is the path wrong?"
    " Metrics are mostly at /metrics",
}


def place_of(url: str) -> str:
    """Return the part of a URL without user, password and query, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def http_status_error(place: str, status: int, location: str) -> ScrapeError:
    """Return the error for a status other than 200. `location` is the redirect target without secrets, or ""."""
    if status in _REDIRECTIONS:
        host = quote_external_text(_host_of(location), 300)
        text = f"{place} redirects to {host}; that is not followed: give the final address as url"
        return ScrapeError(ScrapeFailure.REDIRECT, text)
    kind, hint = _STATUSES.get(status, (ScrapeFailure.HTTP_STATUS, "look into the log of the target"))
    return ScrapeError(kind, f"{place} answered {status}: {hint}")


def wrong_content(place: str, content_type: str, start: bytes = b"") -> ScrapeError | None:
    """Return the error for a wrong content type or a wrong start of a page, or None. A missing type is accepted."""
    lowered = content_type.lower()
    first = start.lstrip()[:1]
    for sort, mark in (("json", b"["), ("html", b"<")):
        if sort in lowered or first == mark:
            return ScrapeError(ScrapeFailure.CONTENT_TYPE, f"{place} {_CONTENT_HINTS[sort]}")
    if not lowered or lowered.startswith("text/plain") or "openmetrics" in lowered:
        return None
    text = f"{place} sent {content_type[:80]!r}, not a text page of metrics"
    if "octet-stream" in lowered:
        text += "; a file server such as `python -m http.server` sends a saved page as text if its name ends in .txt"
    return ScrapeError(ScrapeFailure.CONTENT_TYPE, text)


def translate_http_error(
    error: Exception, place: str, timeout_seconds: float, what: str = "page", *, reading: bool = False
) -> ScrapeError:
    """Map an exception of urllib3 to a ScrapeError. `reading` tells that the body of a `what` had begun to arrive."""
    causes = tuple(_causes(error))
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return ScrapeError(ScrapeFailure.TLS, f"{place}: {_tls_reason(causes)}")
    if is_timeout(error):
        text = f"{place} gave no complete {what} within {timeout_seconds:g} s"
        return ScrapeError(ScrapeFailure.TIMEOUT, text)
    if reading:
        return ScrapeError(ScrapeFailure.CUT_OFF, f"{place} ended the connection in the middle of the {what}")
    reasons = (cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror)
    reason = next(reasons, "the answer is not HTTP, or the connection ended before it")
    return ScrapeError(ScrapeFailure.CONNECT, f"{place}: {reason[:1].lower()}{reason[1:]}; is the target up?")


def is_timeout(error: Exception) -> bool:
    """Return whether the time ran out. urllib3 counts a refused connection among its timeouts."""
    exceptions = urllib3.exceptions
    return isinstance(error, exceptions.TimeoutError) and not isinstance(error, exceptions.NewConnectionError)


def closed_by_peer(error: BaseException) -> bool:
    """Return whether the server closed the connection, as it may close an idle one."""
    closed = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
    return any(isinstance(cause, closed) for cause in _causes(error))


def _host_of(location: str) -> str:
    try:
        return urlsplit(location).netloc.rpartition("@")[2] or "another path of the same host"
    except ValueError:
        return "an address that cannot be read"


def _tls_reason(causes: tuple[BaseException, ...]) -> str:
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate {_UNTRUSTED.get(cause.verify_code, f'is refused: {cause.verify_message}')}"
    reason = next(str(getattr(cause, "reason", None) or cause) for cause in causes if isinstance(cause, ssl.SSLError))
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason:
        return "answers without TLS; does its url begin with http://?"
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason or closed_by_peer(causes[0]):
        return "the handshake was refused; does it want a client_cert_file?"
    return f"TLS failed ({reason.replace('_', ' ').lower()})"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, the exceptions it was raised from, and those it carries as urllib3's do."""
    waiting: list[object] = [error]
    seen: list[object] = []
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, BaseException) and each not in seen:
            seen.append(each)
            yield each
            waiting += [each.__cause__, each.__context__, getattr(each, "reason", None), *each.args]


def redact(text: str, headers: Iterable[str], url: str = "") -> str:
    """Remove the values of headers, their tokens and passwords, and the secrets of a query from a text.

    Redact before truncation: half a secret is not recognised.
    """
    for part in secrets_of(headers, url):
        text = text.replace(part, HIDDEN)
    return text


def secrets_of(headers: Iterable[str], url: str = "") -> tuple[str, ...]:
    """Return the texts to hide in a message, the longest first: a text may be a part of another."""
    parts = {part for header in headers for part in _parts(header)}
    parts |= {
        value
        for name, value in _parameters(url)
        if len(value) >= (SHORTEST_NAMED if _SECRET_NAME.search(name) else SHORTEST_VALUE)
    }
    return _spelled(parts)


def unmistakable(headers: Iterable[str], url: str = "") -> tuple[str, ...]:
    """Return the texts to hide in a page that is parsed later.

    Numbers, words and metric names are left out: hiding the password `vllm` would change the page. A query parameter
    counts only if its name says that it is a secret, because another value may be a model name.
    """
    parts = {part for header in headers for part in _parts(header)}
    parts |= {value for name, value in _parameters(url) if _SECRET_NAME.search(name)}
    found = _spelled({part for part in parts if len(part) >= SHORTEST_VALUE and not _WORD.fullmatch(part)})
    # A token also hides the header that contains it, and every text costs a search of each page.
    return tuple(one for one in found if not any(other in one for other in found if other != one))


def secret_parameters(url: str) -> tuple[str, ...]:
    """Return the names of query parameters that are secrets by their name."""
    return tuple(
        dict.fromkeys(n for n, value in _parameters(url) if _SECRET_NAME.search(n) and len(value) >= SHORTEST_NAMED)
    )


def _parts(header: str) -> Iterator[str]:
    scheme, _, value = header.partition(" ")
    yield from (header, value)
    if scheme.lower() == "basic":
        try:
            pair = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, ValueError):
            return
        yield from (pair, pair.partition(":")[2])


def _parameters(url: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of a query, each value quoted and unquoted. A parameter without `=` is a value."""
    for pair in re.split("[&;]", urlsplit(url).query):
        name, given, value = pair.partition("=")
        value = value if given else pair
        yield from ((name if given else "", one) for one in (value, unquote_plus(value)))


def _spelled(parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({form for part in parts if part for form in _forms(part)}, key=len, reverse=True))


def _forms(part: str) -> Iterator[str]:
    """Yield a secret as it is, and its spellings in URLs, HTML, JSON and label values."""
    text = part.encode("utf-8", "replace").decode()
    yield text
    for form in (quote(text, safe=""), quote(text), quote_plus(text)):
        yield from (form, re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), form))
    yield from (html.escape(text), html.escape(text, quote=False), json.dumps(text)[1:-1])
    yield json.dumps(text, ensure_ascii=False)[1:-1].replace("/", "\\/")
    if len(text) >= SHORTEST_VALUE and text.endswith("="):
        # The padding of base64 is often quoted or left out.
        yield from _forms(text.rstrip("="))
