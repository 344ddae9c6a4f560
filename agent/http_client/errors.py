"""Errors of HTTP requests. A text names status and host with a hint, and nothing that the other side sent."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import urllib3

from agent.errors import ScrapeError, ScrapeFailure

PATHS = "is the path right? Most engines use /metrics (SGLang with --enable-metrics), trtllm-serve /prometheus/metrics"
_STATUSES = {
    401: (ScrapeFailure.AUTH, "set or renew bearer_token_file (option --bearer-token-file) or basic_auth (--username)"),
    403: (ScrapeFailure.AUTH, "these credentials may not read the metrics"),
    404: (ScrapeFailure.HTTP_STATUS, PATHS),
}


class HttpError(ScrapeError):
    """Failed exchange with a host. `status` is the HTTP status, None without a response."""

    def __init__(self, kind: ScrapeFailure, host: str, text: str, status: int | None = None) -> None:
        super().__init__(kind, f"{host}{text}")
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


def transport_error(error: Exception, host: str, seconds: float, status: int | None) -> HttpError:
    """Map an exception of requests or urllib3. With a `status` a response had begun."""
    causes = tuple(_causes(error))
    # urllib3 counts a refused connection among its timeouts.
    refused = any(isinstance(cause, urllib3.exceptions.NewConnectionError) for cause in causes)
    if not refused and any(isinstance(cause, urllib3.exceptions.TimeoutError | TimeoutError) for cause in causes):
        return HttpError(ScrapeFailure.TIMEOUT, host, f" gave no complete answer within {seconds:g} s", status)
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            text = f": TLS failed ({cause.reason}): does it want http://, or a certificate (tls.cert_file)?"
            if isinstance(cause, ssl.SSLCertVerificationError):
                hint = "name its CA in tls.ca_file (option --ca-file)"
                if "mismatch" in cause.verify_message:
                    hint = "give a name that it has as url, or in tls.server_name (option --server-name)"
                text = f": its certificate is refused ({cause.verify_message.rstrip('.')}); {hint}"
            return HttpError(ScrapeFailure.TLS, host, text, status)
    if status is not None:
        text = " ended the connection in the middle of the answer, or its gzip does not unpack"
        return HttpError(ScrapeFailure.CUT_OFF, host, text, status)
    reasons = (cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror)
    reason = next(reasons, "the answer is not HTTP, or the connection ended before it")
    hint = "is it up?"
    if not refused:
        hint = f"is it up, and is it {host.partition(':')[0]}?"
    return HttpError(ScrapeFailure.CONNECT, host, f": {reason[:1].lower()}{reason[1:]}; {hint}")


def _causes(error: object) -> Iterator[BaseException]:
    """Yield an exception, the exceptions it was raised from, and those it carries as urllib3's do."""
    if isinstance(error, BaseException):
        yield error
        for inner in (error.__cause__ or error.__context__, getattr(error, "reason", None), *error.args):
            yield from _causes(inner)
