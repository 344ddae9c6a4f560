"""Errors of HTTP requests. A text names status and host with a hint, and nothing that the other side sent."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import urllib3

from agent.errors import ScrapeError, ScrapeFailure

_STATUSES = {
    401: (ScrapeFailure.AUTH, "set bearer_token_file or basic_auth, or renew what is in them"),
    403: (ScrapeFailure.AUTH, "these credentials may not read the metrics"),
    404: (
        ScrapeFailure.HTTP_STATUS,
        "is the path right? vLLM and SGLang (with --enable-metrics) use /metrics, trtllm-serve /prometheus/metrics",
    ),
}
_UNKNOWN_CA = frozenset({7, 18, 19, 20, 21})
"""Codes (X509_V_ERR_* of OpenSSL's x509_vfy.h) of a certificate that no trusted CA signed."""

_CLOSED = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class HttpError(ScrapeError):
    """Failed exchange with `host`. `status` is the HTTP status, None without a response."""

    def __init__(self, kind: ScrapeFailure, host: str, text: str, status: int | None = None) -> None:
        super().__init__(kind, f"{host}{text}")
        self.host = host
        self.status = status


def place_of(url: str) -> str:
    """Return the part of a URL without user, password and query, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def status_error(host: str, status: int) -> HttpError:
    """Return the error for a status other than 200."""
    if status in (301, 302, 303, 307, 308):
        text = " redirects; that is not followed: give the final address as url"
        return HttpError(ScrapeFailure.REDIRECT, host, text, status)
    kind, hint = _STATUSES.get(status, (ScrapeFailure.HTTP_STATUS, "look into the log of the target"))
    return HttpError(kind, host, f" answered {status}: {hint}", status)


def transport_error(error: Exception, host: str, seconds: float, what: str, status: int | None) -> HttpError:
    """Map an exception of requests or urllib3. `what` had begun to arrive if there is a `status`."""
    causes = tuple(_causes(error))
    if _is_timeout(causes):
        text = f" gave no complete {what} within {seconds:g} s"
        return HttpError(ScrapeFailure.TIMEOUT, host, text, status)
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return HttpError(ScrapeFailure.TLS, host, f": {_tls_reason(causes)}", status)
    if status is not None:
        text = f" ended the connection in the middle of the {what}"
        return HttpError(ScrapeFailure.CUT_OFF, host, text, status)
    reasons = (cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror)
    reason = next(reasons, "the answer is not HTTP, or the connection ended before it")
    return HttpError(ScrapeFailure.CONNECT, host, f": {reason[:1].lower()}{reason[1:]}; is it up?")


def is_closed_by_peer(error: Exception) -> bool:
    """Return whether the server closed the connection, as it may close an idle one."""
    return any(isinstance(cause, _CLOSED) for cause in _causes(error))


def _is_timeout(causes: tuple[BaseException, ...]) -> bool:
    """Return whether the time ran out. urllib3 counts a refused connection among its timeouts."""
    exceptions = urllib3.exceptions
    late = any(isinstance(cause, exceptions.TimeoutError | TimeoutError) for cause in causes)
    return late and not any(isinstance(cause, exceptions.NewConnectionError) for cause in causes)


def _tls_reason(causes: tuple[BaseException, ...]) -> str:
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            hint = "; name the CA that signed it in ca_file" if cause.verify_code in _UNKNOWN_CA else ""
            return f"its certificate is refused ({cause.verify_message}){hint}"
    reason = next(str(getattr(cause, "reason", None) or cause) for cause in causes if isinstance(cause, ssl.SSLError))
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason:
        return "answers without TLS; does its url begin with http://?"
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason or isinstance(causes[-1], _CLOSED):
        return "the handshake was refused; does it want a client certificate (cert_file)?"
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
