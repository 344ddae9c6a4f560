"""Probes of the targets: host name, page, clock, process. Errors are part of the records."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from agent.errors import ScrapeError
from agent.gpu.owners import PROC, PidFileError, read_pid
from agent.http_client.client import HttpClient
from agent.http_client.options import TargetOptions
from agent.http_client.page import PageFetcher
from agent.scrape.page_engines import target_of_engine
from agent.scrape.scrapers import PageReader, Target
from rules.telemetry.snapshots import Snapshot

MOST_THREADS = 32
"""Probes at a time."""

PROXIES = ("http_proxy", "https_proxy", "all_proxy")

AGAIN = 2
"""Number of further requests. Behind a load balancer with two engines, the next page is of the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetProbe:
    """Page of a target, or the error. `t` is the unix time when it was complete.

    `unknown_host` is the resolver's reason if the host has no address. `clock_ahead_seconds` is the minimum lead of the
    target's clock (negative: behind), or None without a Date header.
    """

    target: Target
    t: float
    unknown_host: str = ""
    error: ScrapeError | None = None
    page_bytes: int = 0
    seconds: float = 0.0
    snapshot: Snapshot | None = None
    holds: str = ""
    """Words for how many engines the page holds, "" for one."""
    families: Mapping[str, str] = field(default_factory=dict)
    clock_ahead_seconds: float | None = None
    pid: int | None = None
    pid_trouble: str = ""
    proxies: bool = False
    """The environment names a proxy, which is not used."""
    several: str = ""
    """Evidence that several processes answer at the address, or empty."""


def probe_targets(watched: Sequence[Target], clock: Callable[[], float]) -> tuple[TargetProbe, ...]:
    """Probe all targets in parallel. Each takes at most four times its timeout."""
    if not watched:
        return ()
    with ThreadPoolExecutor(max_workers=min(MOST_THREADS, len(watched)), thread_name_prefix="doctor") as pool:
        return tuple(itertools.chain.from_iterable(pool.map(lambda target: _probe_target(target, clock), watched)))


def _probe_target(target: Target, clock: Callable[[], float]) -> tuple[TargetProbe, ...]:
    """Return the probe of a target, or of each engine where its page holds several."""
    pid, pid_trouble = _process_id(target.pid_file)
    parts = urlsplit(target.options.url)
    try:
        # The port by number: a slim container has no names of services.
        socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        reason = str(getattr(error, "strerror", "") or "it is no host name")
        return (TargetProbe(target=target, t=clock(), unknown_host=reason, pid=pid, pid_trouble=pid_trouble),)
    reader, start = PageReader(target.engine), time.monotonic()
    body, failure = b"", None
    engines: dict[str, Snapshot] = {}
    try:
        with closing(PageFetcher(target.options)) as fetcher:
            body = fetcher.fetch()
            engines = reader.read_engines(body, clock())
    except ScrapeError as error:
        failure = error
    seconds, families = time.monotonic() - start, dict(reader.families)
    snapshot = engines.get("")
    probe = TargetProbe(
        target=target,
        t=clock(),
        error=failure,
        proxies=any(os.environ.get(name) for given in PROXIES for name in (given, given.upper())),
        page_bytes=len(body),
        seconds=seconds,
        snapshot=snapshot,
        holds=reader.describe_engines(),
        families=families,
        several=_several(target, reader, snapshot, seconds, clock) if snapshot is not None else "",
        clock_ahead_seconds=_clock_ahead(target.options, clock) if failure is None else None,
        pid=pid,
        pid_trouble=pid_trouble,
    )
    named = ((target_of_engine(target, name), page) for name, page in engines.items())
    return tuple(replace(probe, target=part, snapshot=page) for part, page in named) or (probe,)


def _several(target: Target, reader: PageReader, first: Snapshot, seconds: float, clock: Callable[[], float]) -> str:
    """Return the evidence of further pages over new connections. Skip a slow target."""
    if seconds * AGAIN > target.options.timeout_seconds:
        return ""
    before = first
    for _ in range(AGAIN):
        try:
            with closing(PageFetcher(target.options)) as fetcher:
                now = reader.read(fetcher.fetch(), clock())
        except ScrapeError:
            return ""
        if differs := _differs(before, now):
            return differs
        before = now
    return ""


def _differs(one: Snapshot, other: Snapshot) -> str:
    """Return the evidence that two pages shortly after each other are of different processes, or an empty text."""
    if one.facts.get("model", "") != other.facts.get("model", ""):
        return "its model changes from one answer to the next"
    if one.started_at is not None and other.started_at is not None and abs(one.started_at - other.started_at) > 1.0:
        return "the time at which it started changes from one answer to the next"
    if one.started_at is None and any(other.counters.get(name, value) < value for name, value in one.counters.items()):
        return "its counters go back from one answer to the next"
    return ""


def _clock_ahead(options: TargetOptions, clock: Callable[[], float]) -> float | None:
    """Return the minimum lead of the server's clock from its Date header, or None without the header.

    The header has whole seconds and was written between request and response. The request has no secret, because an
    error response has a date, too.
    """
    open_to_all = replace(options, bearer_token_file=None, username=None, password_file=None)
    try:
        with closing(HttpClient(open_to_all)) as client:
            client.load_if_changed()
            before = clock()
            head = client.prepare("HEAD", urlsplit(options.url)._replace(query="").geturl(), {})
            with client.send(head) as result:
                after = clock()
        theirs = parsedate_to_datetime(result.headers.get("Date", "")).timestamp()
    except (ScrapeError, ValueError):
        return None
    return max(theirs - after, 0.0) + min(theirs + 1.0 - before, 0.0)


def _process_id(path: str | None) -> tuple[int | None, str]:
    if path is None:
        return None, ""
    try:
        pid = read_pid(path)
    except PidFileError as none:
        return None, str(none)
    if not PROC.joinpath("self").exists():
        return pid, f"{path}: there is no /proc here that tells of processes"
    return pid, "" if PROC.joinpath(str(pid)).exists() else f"{path}: there is no process {pid} here"
