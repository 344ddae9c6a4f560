"""What the doctor says of certificates: until when are they good, those of others and our own?

Owns looking (one handshake with each place, our own files) and the words. Whether a certificate is believed is a matter of the
connection itself, which is tried elsewhere. A further place with a certificate is a row of `_asked` or of `_held`.
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

from agent.config.keys import Config
from agent.doctor.check_result import CheckResult, count, fail, warn
from agent.errors import ScrapeError
from agent.gpu.deadline import DeadlineThread, NotAnsweringError
from agent.http_client.transport import TargetOptions, tls_of
from agent.scrape.scrapers import MOST_THREADS, Target

SOON_DAYS = 14.0
"""Certificates that renew themselves do so thirty days before their end: at fourteen something has gone wrong."""

DAY = 86_400.0
MOST_BYTES = 1024 * 1024

NO_CERTIFICATE = (ValueError, x509.InvalidVersion)
"""What the library says of bytes that are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateProbe:
    """`ends` is until when it is good, in unix seconds; `ours` says whether it is in a file of ours."""

    check: str
    what: str
    ends: float
    ours: bool


def probe_certificates(config: Config, watched: tuple[Target, ...]) -> tuple[CertificateProbe, ...]:
    """Every certificate that can be seen. Takes at most as long as the slowest place's timeout."""
    places = dict.fromkeys((*_asked(config), *((f"target {t.tier}/{t.replica}", t.options) for t in watched)))
    tls = [(check, options) for check, options in places if urlsplit(options.url).scheme == "https"]
    held = [(check, key, path) for check, key, path in dict.fromkeys(_held(config, list(places))) if path]
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
    """A line for each that is over or will soon be; one that is over and not ours has failed its connection already."""
    for one in seen:
        left = one.ends - now
        if left > SOON_DAYS * DAY or (left <= 0 and not one.ours):
            continue
        until = datetime.fromtimestamp(one.ends, UTC).strftime("%Y-%m-%d %H:%M UTC")
        if left <= 0:
            yield fail(one.check, f"{one.what} ended {until}", "renew it, then reload (SIGHUP)")
        else:
            text = f"{one.what} is good for {_days(left)} more ({until})"
            yield warn(one.check, text, "see why it was not renewed; after its end nothing is read or sent there")


def _days(seconds: float) -> str:
    return count(int(seconds // DAY), "day")


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 443}"


def _asked(config: Config) -> Iterator[tuple[str, TargetOptions]]:
    """Whom we ask, beside the targets, by the line that speaks of them."""
    if config.gpus.exporter is not None:
        yield "gpus", config.gpus.exporter[1].options(config.timeout_seconds())
    if config.store is not None:
        yield "store", config.store.options()
    yield from (("alerting", one.options("/")) for one in config.alerting.alertmanagers)


def _held(config: Config, places: list[tuple[str, TargetOptions]]) -> Iterator[tuple[str, str, str]]:
    """Our own certificates, which we show to readers and to those whom we ask."""
    if config.web.tls is not None:
        yield "web", "web.tls.cert_file", config.web.tls.cert_file
    yield from ((check, "tls.cert_file", options.client_cert_file or "") for check, options in places)


def _of_file(path: str) -> float | None:
    """When the first certificate of a file ends; None where that cannot be told."""
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
        # Why it cannot be reached, the line of the place itself says.
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
