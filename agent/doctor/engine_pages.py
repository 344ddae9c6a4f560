"""Pages for a first look: of running engines over some seconds, or one or two saved pages of one engine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from agent.config.peer import Peer
from agent.doctor.first_look import look_at_tier
from agent.errors import ConfigError, ScrapeError
from agent.gpu.collector import GpuCollector
from agent.replay.replay import Replay
from agent.scrape.engine_probe import EngineProbe, probe_engine
from agent.scrape.scrapers import PageReader, Scrapers, Target
from agent.sources.scrape import ScrapeSource
from exporters.documents.diagnosis import TierLook
from rules.evaluator.observation import Observation, ReplicaScrape
from rules.plan.load_bins import TierContext, build_tier_context
from rules.plan.schema import TierPlan
from rules.telemetry.snapshots import ENGINE_VERSION, GpuReadout, Snapshot
from rules.telemetry.windows import group_by, is_restart

INTERVAL_SECONDS = 15.0
"""Time between two scrapes, in seconds: that of the daemon."""

PATHS = ("/metrics", "/prometheus/metrics")
"""Paths of metrics pages; the second is that of trtllm-serve."""

HOST_AND_PORT = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:]+\]):\d{1,5}")

Progress = Callable[[float], None]
"""Function that shows how much of the look is over (0 to 1)."""

WORK = ("requests_finished", "prompt_tokens", "generation_tokens")
"""Counters that only grow while an engine lives."""

ONE_CELL_SECONDS = 1e9
"""Width of the windows that are shown: the whole look."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")

Ways = dict[str, Any]
"""Fields of a Peer: credentials and certificates."""


class LookedPages(NamedTuple):
    """Last page of each replica of a tier, and the title of its engine."""

    last: dict[str, Snapshot]
    titles: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """Objectives in seconds, None for none."""

    ttft: float | None
    tpot: float | None


def find_engines(places: Sequence[str], ways: Ways) -> tuple[tuple[EngineProbe, ...], tuple[str, ...]]:
    """Return the engines at these addresses (URL or host:port), and why others are none. Raise ConfigError."""
    wrong = [place for place in places if "://" not in place and not HOST_AND_PORT.fullmatch(place)]
    if wrong:
        example = "http://127.0.0.1:8000/metrics, 127.0.0.1:8000, or one or two saved pages"
        raise ConfigError(tuple(f"{place!r}: no file, and no address such as {example}" for place in wrong))
    with ThreadPoolExecutor(max_workers=16, thread_name_prefix="look") as pool:
        answers = tuple(pool.map(lambda place: find_engine(place, ways), dict.fromkeys(places)))
    # Two spellings of an address are one engine.
    engines = {answer.url: answer for answer in answers if isinstance(answer, EngineProbe)}
    return tuple(engines.values()), tuple(str(answer) for answer in answers if not isinstance(answer, EngineProbe))


def find_engine(place: str, ways: Ways) -> EngineProbe | ScrapeError:
    """Return the engine at an address, or the first error. An address without a path is asked for the usual ones."""
    url = urlsplit(place if "://" in place else f"http://{place}")
    paths = PATHS if url.path in ("", "/") else (url.path,)
    errors = []
    for path in paths:
        try:
            return probe_engine(Peer.read(dict(url=urlunsplit(url._replace(path=path)), **ways)))
        except ScrapeError as error:
            errors.append(error)
    return errors[0]


def look_at_engines(
    engines: Sequence[EngineProbe], ways: Ways, seconds: float, objectives: Objectives, show: Progress
) -> tuple[TierLook, ...]:
    """Scrape running engines for so many seconds and return the look at each tier: one model on one engine."""
    local = all(urlsplit(probe.url).hostname in LOOPBACK for probe in engines)
    reader = _local_gpu_reader() if local else None
    gpus = GpuCollector(reader)
    gpus.read_gpus(time.time())
    # Which of several engines owns which GPU is not known here.
    owned = tuple(gpus.latest) if len(engines) == 1 else ()
    targets = [
        Target(
            tier=_name_tier(probe, engines),
            replica=_name_replica(probe, engines),
            pool="mixed",
            peer=Peer.read(dict(url=probe.url, timeout_seconds=INTERVAL_SECONDS * 0.8, **ways)),
            engine=probe.engine.name,
            gpus=owned,
        )
        for probe in engines
    ]
    titles = {probe.engine.name: probe.engine.title for probe in engines}
    with closing(Scrapers(targets)) as scrapers, closing(gpus):
        source = ScrapeSource(targets, scrapers, gpus)
        observations = _observe(source, seconds, show)
        products = _describe_gpus(gpus.latest.values())
        return _look(observations, lambda engine: titles[engine], objectives, products, is_dated=True)


def _observe(source: ScrapeSource, seconds: float, show: Progress) -> Iterator[Observation]:
    begin = time.monotonic()
    count = max(1, round(seconds / INTERVAL_SECONDS))
    for number in range(count + 1):
        due = begin + number * seconds / count
        while (wait := due - time.monotonic()) > 0:
            show(1 - (begin + seconds - time.monotonic()) / seconds)
            time.sleep(min(wait, 0.5))
        yield from source.observe(time.time())


def look_at_files(
    paths: Sequence[Path], bodies: Sequence[bytes], seconds: float, objectives: Objectives
) -> tuple[TierLook, ...]:
    """Return the look at one engine's saved pages, `seconds` apart.

    Raise ScrapeError for a page of no engine, and ConfigError for pages of two engines.
    """
    reader, now = PageReader(), time.time()
    observations = []
    engines_of: list[str] = []
    for place, body in enumerate(bodies):
        t = now - seconds * (len(bodies) - 1 - place)
        try:
            engines = reader.read_engines(body, t)
        except ScrapeError as error:
            raise ScrapeError(error.kind, f"{paths[place]}: {error.text}") from error
        tier = next(iter(engines.values())).facts.get("model", "engine")
        engines_of.append(f"{paths[place]} is of {reader.engine.title}, {tier}")
        scrapes = (
            ReplicaScrape(tier=tier, replica=name or paths[0].name, t=t, snapshot=page)
            for name, page in engines.items()
        )
        observations.append(Observation(now=t, scrapes=tuple(scrapes)))
    if len({text.partition(" is of ")[2] for text in engines_of}) > 1:
        raise ConfigError((f"{', '.join(engines_of)}: two pages of one engine are needed",))
    title = reader.engine.title
    return _look(observations, lambda engine: title, objectives, "", is_dated=False)


def _look(
    observations: Iterable[Observation],
    title_of: Callable[[str], str],
    objectives: Objectives,
    gpus: str,
    is_dated: bool,
) -> tuple[TierLook, ...]:
    """Evaluate the observations and return the look at each tier that gave a page."""
    pages: dict[str, LookedPages] = {}
    contexts: dict[str, TierContext] = {}
    observations = tuple(observations)
    troubles: dict[tuple[str, str], str] = {}
    for scrape in (scrape for observation in observations for scrape in observation.scrapes):
        page = scrape.snapshot
        if page is None:
            troubles[scrape.key] = f"{scrape.replica} stopped answering: {scrape.error}"
            continue
        looked = pages.setdefault(scrape.tier, LookedPages({}, {}))
        if scrape.tier not in contexts:
            contexts[scrape.tier] = build_tier_context(scrape.tier, _assumed_plan(page, objectives))
        before = looked.last.get(scrape.replica)
        if before is not None and is_restart(before, page):
            troubles[scrape.key] = f"{scrape.replica} restarted during the look, or its pages are of two engines"
        elif before is not None and any(before.counters.get(name, 0.0) > page.counters.get(name, 0.0) for name in WORK):
            troubles[scrape.key] = f"{scrape.replica} counts backwards: are its pages in order, and of one engine?"
        looked.last[scrape.replica] = page
        release = page.facts.get(ENGINE_VERSION) or page.facts.get("engine_versions", "")
        looked.titles[scrape.replica] = f"{title_of(page.engine)} {release}".rstrip()
    replay = Replay("first look", contexts, ONE_CELL_SECONDS)
    for observation in observations:
        replay.evaluate(observation)
    replay.finish()
    looks = []
    for tier, looked in pages.items():
        texts = tuple(text for key, text in troubles.items() if key[0] == tier)
        looks.append(look_at_tier(replay, tier, looked.last, looked.titles, gpus, is_dated, texts))
    return tuple(looks)


def _assumed_plan(page: Snapshot, objectives: Objectives) -> TierPlan:
    return TierPlan.model_validate(
        {
            "model": page.facts.get("model") or "unknown",
            "engine": page.engine,
            "gpu": {"product": "unknown", "per_replica": 1},
            "slo": {"ttft_p99_seconds": objectives.ttft, "tpot_p99_seconds": objectives.tpot},
            # Offline work alone needs no objective.
            "workload": {"archetype": "batch"} if objectives.ttft is None else None,
        }
    )


def _name_tier(probe: EngineProbe, engines: Sequence[EngineProbe]) -> str:
    """Return the model's name, with the engine where another engine serves the same model."""
    model = probe.model or "engine"
    names = {other.engine.name for other in engines if other.model == probe.model}
    return model if len(names) == 1 else f"{model} on {probe.engine.title}"


def _name_replica(probe: EngineProbe, engines: Sequence[EngineProbe]) -> str:
    """Return host and port, with the path where two engines share them."""
    parts = urlsplit(probe.url)
    shared = [other for other in engines if urlsplit(other.url).netloc == parts.netloc]
    return parts.netloc if len(shared) == 1 else parts.netloc + parts.path


def _local_gpu_reader() -> Any:
    """Return the reader of NVML, or None without a driver."""
    # On demand: NVML takes memory.
    from agent.gpu.nvml_reader import NvmlReader, list_local_gpus

    return NvmlReader() if list_local_gpus() else None


def _describe_gpus(readouts: Iterable[GpuReadout]) -> str:
    groups = group_by(readouts, lambda readout: readout.product)
    return ", ".join(f"{len(group)} x {product}" for product, group in groups.items())
