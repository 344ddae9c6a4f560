"""Check of the expiry of certificates: those of servers, by a handshake, and those in our files.

Trust is checked by the connections. A further certificate is a row of `_endpoints` or `_own_files`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509

from agent.config.config import Config
from agent.doctor.check_result import CheckResult, fail, warn
from agent.errors import ScrapeError
from agent.gpu.deadline import DeadlineThread, NotAnsweringError
from agent.http_client.transport import TargetOptions, tls_of
from agent.scrape.scrapers import MOST_THREADS, Target
from rules.telemetry.wording import format_count

SOON_DAYS = 14.0
"""Remaining days below which a warning is given. Automatic renewal happens thirty days before the end."""

DAY = 86_400.0
MOST_BYTES = 1024 * 1024

NO_CERTIFICATE = (ValueError, x509.InvalidVersion)
"""Errors of the library for bytes that are no certificate."""


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
            return _end(x509.load_pem_x509_certificates(file.read(MOST_BYTES))[0])
    except (OSError, *NO_CERTIFICATE):
        return None


def _of_place(options: TargetOptions) -> float | None:
    thread = DeadlineThread("certificate", options.timeout_seconds)
    try:
        return thread.run(lambda: _shown(options))
    except (NotAnsweringError, OSError, ScrapeError, *NO_CERTIFICATE):
        # The check of the endpoint itself reports the reason.
        return None
    finally:
        thread.stop()


def _shown(options: TargetOptions) -> float | None:
    parts, context = urlsplit(options.url), tls_of(options)
    assert context is not None
    plain = socket.create_connection((parts.hostname, parts.port or 443), options.timeout_seconds)
    with plain, context.wrap_socket(plain, server_hostname=options.server_name or parts.hostname) as secured:
        shown = secured.getpeercert(binary_form=True)
    return _end(x509.load_der_x509_certificate(shown)) if shown else None


def _end(certificate: x509.Certificate) -> float:
    return certificate.not_valid_after_utc.timestamp()
