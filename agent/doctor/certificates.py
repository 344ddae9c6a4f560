"""Check of the expiry of servers' certificates, by a handshake.

Trust and an expired certificate are errors of the connections. A further server is a row of `_endpoints`.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from agent.config.config import Config
from agent.doctor.check_result import CheckResult, warn
from agent.doctor.page_probes import MOST_THREADS
from agent.errors import ScrapeError
from agent.gpu.deadline import DeadlineThread, NotAnsweringError
from agent.http_client.options import TargetOptions, load_tls
from agent.scrape.scrapers import Target
from rules.telemetry.wording import format_count

SOON_DAYS = 14.0
"""Remaining days below which a warning is given. Automatic renewal happens thirty days before the end."""

DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateProbe:
    """Certificate of a server. `ends` is its end in unix seconds."""

    check: str
    url: str
    ends: float


def probe_certificates(config: Config, watched: tuple[Target, ...]) -> tuple[CertificateProbe, ...]:
    """Read all certificates, in at most the slowest timeout of the endpoints."""
    places = dict.fromkeys((*_endpoints(config), *((f"target {t.tier}/{t.replica}", t.options) for t in watched)))
    tls = [(check, options) for check, options in places if urlsplit(options.url).scheme == "https"]
    if not tls:
        return ()
    with ThreadPoolExecutor(max_workers=min(MOST_THREADS, len(tls)), thread_name_prefix="doctor") as pool:
        ends = pool.map(lambda each: _end_of(each[1]), tls)
        return tuple(
            CertificateProbe(check=check, url=options.url, ends=end)
            for (check, options), end in zip(tls, ends, strict=True)
            if end is not None
        )


def check_certificates(seen: tuple[CertificateProbe, ...], now: float) -> Iterator[CheckResult]:
    """Report certificates near their end. Connections report ended certificates."""
    for one in seen:
        left = one.ends - now
        if not 0 < left <= SOON_DAYS * DAY:
            continue
        until = datetime.fromtimestamp(one.ends, UTC).strftime("%Y-%m-%d %H:%M UTC")
        days = format_count(int(left // DAY), "day")
        text = f"the certificate of {_host(one.url)} is good for {days} more ({until})"
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


def _end_of(options: TargetOptions) -> float | None:
    """Return the end of a server's certificate, or None if it is unknown or not verified."""
    thread = DeadlineThread("certificate", options.timeout_seconds)
    try:
        ends = thread.run(lambda: _shown(options)).get("notAfter")
        return ssl.cert_time_to_seconds(str(ends)) if ends else None
    except (NotAnsweringError, OSError, ScrapeError, ValueError):
        # The check of the endpoint itself reports the reason.
        return None
    finally:
        thread.stop()


def _shown(options: TargetOptions) -> Mapping[str, object]:
    parts, context = urlsplit(options.url), load_tls(options)
    assert context is not None
    plain = socket.create_connection((parts.hostname, parts.port or 443), options.timeout_seconds)
    with plain, context.wrap_socket(plain, server_hostname=options.server_name or parts.hostname) as secured:
        return secured.getpeercert() or {}
