"""Head of an HTTP request: parsed strictly before anything else is done with the request. Pure.

A worker's parser (cheroot) accepts more than RFC 9112 allows: a blank before a colon, a missing or a second Host header,
folded lines, two lengths. Such a head is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from rules.light_dataclass import light_dataclass

_END = re.compile(rb"\r?\n\r?\n")
_REQUEST_LINE = re.compile(r"([!-~]+) ([^ \r]+) HTTP/([0-9])\.([0-9])")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r]*?)[ \t]*")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]+)(:[0-9]*)?")
_LENGTH = re.compile(r"[0-9]{1,18}", re.ASCII)
_QUALITY = re.compile(r"[01](\.[0-9]{0,3})?", re.ASCII)


class RequestHeadError(Exception):
    """Head that is refused, with the status line of the answer."""

    def __init__(self, text: str, status: str = "400 Bad Request") -> None:
        super().__init__(text)
        self.status = status


@light_dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """Request without its body. `path` is decoded and has no query; names of `headers` are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body_bytes: int
    """Announced length of the body, 0 without one."""
    expects_continue: bool
    """Whether the client sends the body only after a 100 Continue."""


def find_head_end(held: bytes | bytearray) -> int:
    """Return the length of the head in what has been received. Return 0 while it is incomplete."""
    end = _END.search(held)
    return end.end() if end is not None else 0


def parse_head(data: bytes) -> RequestHead:
    """Parse a complete head. Raise RequestHeadError."""
    line, *lines = data.decode("latin-1").removeprefix("\r\n").split("\n")
    request = _REQUEST_LINE.fullmatch(line[:-1]) if line.endswith("\r") else None
    if request is None:
        raise RequestHeadError("malformed request line")
    method, target, major, minor = request.groups()
    if (major, minor) not in (("1", "0"), ("1", "1")):
        raise RequestHeadError("only HTTP/1.0 and HTTP/1.1", "505 HTTP Version Not Supported")
    headers = _parse_headers(lines)
    hosts = headers.get("host", [])
    if len(hosts) > 1 or (minor == "1" and not hosts):
        raise RequestHeadError("exactly one Host header is needed")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise RequestHeadError("the Host header is malformed")
    lengths = headers.get("content-length", [])
    if len(set(lengths)) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise RequestHeadError("the Content-Length header is malformed")
    if lengths and "transfer-encoding" in headers:
        raise RequestHeadError("a body has a Content-Length or a Transfer-Encoding, not both")
    path, _, query = target.partition("?")
    return RequestHead(
        method=method,
        path=unquote(path, "latin-1"),
        query=query,
        # As cheroot: of several the last one counts.
        headers={name: values[-1] for name, values in headers.items()},
        body_bytes=int(lengths[0]) if lengths else 0,
        expects_continue=minor == "1" and headers.get("expect", [""])[-1].lower() == "100-continue",
    )


def _parse_headers(lines: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in lines[:-2]:
        header = _HEADER.fullmatch(line[:-1]) if line.endswith("\r") else None
        if header is None:
            raise RequestHeadError("malformed header line")
        found.setdefault(header[1].lower(), []).append(header[2])
    return found


def is_gzip_accepted(accept_encoding: str) -> bool:
    """Return whether the value of an Accept-Encoding header allows gzip (RFC 9110, 12.5.3)."""
    accepted = {}
    for item in accept_encoding.lower().split(","):
        coding, *parameters = (word.strip() for word in item.split(";"))
        quality = next((one[2:] for one in parameters if one.startswith("q=")), "1")
        accepted[coding] = bool(_QUALITY.fullmatch(quality)) and float(quality) > 0
    return accepted.get("gzip", accepted.get("x-gzip", accepted.get("*", False)))
