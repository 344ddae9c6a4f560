"""Check of the expiry of certificates: those of servers, by a handshake, and those in our files.

Trust is checked by the connections. A further certificate is a row of `_endpoints` or `_own_files`.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from agent.config.config import Config
from agent.doctor.check_result import CheckResult, fail, warn
from agent.errors import ScrapeError
from agent.gpu.deadline import DeadlineThread, NotAnsweringError
from agent.http_client.connection import MOST_THREADS
from agent.http_client.transport import TargetOptions, tls_of
from agent.scrape.scrapers import Target
from rules.telemetry.wording import format_count

SOON_DAYS = 14.0
"""Remaining days below which a warning is given. Automatic renewal happens thirty days before the end."""

DAY = 86_400.0
MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateProbe:
    """Certificate. `ends` is its end in unix seconds; `ours`: it is in one of our files."""

    check: str
    what: str
    ends: float
    ours: bool


def probe_certificates(config: Config, watched: tuple[Target, ...]) -> tuple[CertificateProbe, ...]:
    """Read all certificates, in at most the slowest timeout of the endpoints."""
    places = dict.fromkeys((*_endpoints(config), *((f"target {t.tier}/{t.replica}", t.options) for t in watched)))
    tls = [(check, options) for check, options in places if urlsplit(options.url).scheme == "https"]
    held = [(check, key, path) for check, key, path in dict.fromkeys(_own_files(config, list(places))) if path]
    found = [
        CertificateProbe(check=check, what=f"the certificate of {key}, {path},", ends=end, ours=True)
        for check, key, path in held
        if (end := _of_file(path))
    ]
    if not tls:
        return tuple(found)
    with ThreadPoolExecutor(max_workers=min(MOST_THREADS, len(tls)), thread_name_prefix="doctor") as pool:
        ends = pool.map(lambda each: _of_place(each[1]), tls)
        shown = [(check, options.url, end) for (check, options), end in zip(tls, ends, strict=True) if end]
    return (
        *found,
        *(
            CertificateProbe(check=c, what=f"the certificate of {_host(url)}", ends=e, ours=False)
            for c, url, e in shown
        ),
    )


def check_certificates(seen: tuple[CertificateProbe, ...], now: float) -> Iterator[CheckResult]:
    """Report certificates near or after their end. Connections report ended certificates of servers."""
    for one in seen:
        left = one.ends - now
        if left > SOON_DAYS * DAY or (left <= 0 and not one.ours):
            continue
        until = datetime.fromtimestamp(one.ends, UTC).strftime("%Y-%m-%d %H:%M UTC")
        if left <= 0:
            yield fail(one.check, f"{one.what} ended {until}", "renew it, then reload (SIGHUP)")
        else:
            text = f"{one.what} is good for {format_count(int(left // DAY), 'day')} more ({until})"
            yield warn(one.check, text, "see why it was not renewed; after its end nothing is read or sent there")


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 443}"


def _endpoints(config: Config) -> Iterator[tuple[str, TargetOptions]]:
    """Yield the endpoints other than targets, with the name of their check."""
    if config.gpus.exporter is not None:
        yield "gpus", config.gpus.exporter[1].options(config.timeout_seconds())
    if config.store is not None:
        yield "store", config.store.options()
    yield from (("alerting", one.options("/")) for one in config.alerting.alertmanagers)


def _own_files(config: Config, places: list[tuple[str, TargetOptions]]) -> Iterator[tuple[str, str, str]]:
    """Yield our server and client certificates: check, key, path."""
    if config.web.tls is not None:
        yield "web", "web.tls.cert_file", config.web.tls.cert_file
    yield from ((check, "tls.cert_file", options.client_cert_file or "") for check, options in places)


def _of_file(path: str) -> float | None:
    """Return the end of the first certificate of a file, or None if it is unreadable."""
    try:
        with Path(path).open("rb") as file:
            found = _PEM.search(file.read(MOST_BYTES))
        return find_end(ssl.PEM_cert_to_DER_cert(found[0].decode("ascii"))) if found else None
    except (OSError, ValueError):
        return None


def _of_place(options: TargetOptions) -> float | None:
    thread = DeadlineThread("certificate", options.timeout_seconds)
    try:
        shown = thread.run(lambda: _shown(options))
        return find_end(shown) if shown else None
    except (NotAnsweringError, OSError, ScrapeError, ValueError):
        # The check of the endpoint itself reports the reason.
        return None
    finally:
        thread.stop()


def _shown(options: TargetOptions) -> bytes | None:
    parts, context = urlsplit(options.url), tls_of(options)
    assert context is not None
    plain = socket.create_connection((parts.hostname, parts.port or 443), options.timeout_seconds)
    with plain, context.wrap_socket(plain, server_hostname=options.server_name or parts.hostname) as secured:
        return secured.getpeercert(binary_form=True)


def find_end(der: bytes) -> float:
    """Return the end of a certificate in unix seconds. Raise ValueError for bytes that are no certificate.

    RFC 5280, 4.1: Certificate > tbsCertificate > [version], serial, signature, issuer, validity > notAfter. No library:
    the usual one takes 17 MB of an installation, and this date is all that is read.
    """
    _, at, _ = _element(der, 0)
    _, at, end = _element(der, at)
    fields: list[tuple[int, int, int]] = []
    while at < end and len(fields) < 5:
        fields.append(_element(der, at))
        at = fields[-1][2]
    if fields and fields[0][0] == _VERSION:
        del fields[0]
    if len(fields) < 4:
        raise ValueError("ends before its validity")
    _, _, at = _element(der, fields[3][1])
    tag, start, end = _element(der, at)
    text = der[start:end].decode("ascii")
    if tag == _UTC_TIME:
        # RFC 5280, 4.1.2.5.1: two digits from 50 on are of the last century.
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


_VERSION, _UTC_TIME = 0xA0, 0x17
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of the DER element at an offset, and where its content begins and ends."""
    head = der[at : at + 2]
    if len(head) < 2:
        raise ValueError("is cut off")
    start, length = at + 2, head[1]
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[at + 2 : start], "big")
    if start + length > len(der):
        raise ValueError("is cut off")
    return head[0], start, start + length
