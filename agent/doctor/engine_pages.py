"""Pages for a first look: of running engines over some seconds, or one or two saved pages of one engine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from agent.config.peer import Peer
from agent.config.targets import normalize_url
from agent.doctor.engine_hosts import HostGpus, describe_gpus, find_gpus, find_host
from agent.doctor.first_look import WORK, look_at_tier
from agent.errors import ConfigError, ScrapeError, ScrapeFailure
from agent.gpu.collector import ExporterPage, GpuCollector, GpuReader, samples
from agent.http_client.client import PageFetcher, fetch_page, place_of
from agent.replay.replay import Replay
from agent.scrape.engine_probe import EngineProbe, probe_engine
from agent.scrape.exposition import SeriesReader
from agent.scrape.scrapers import PageReader, Scrapers, Target
from agent.sources.scrape import ScrapeSource
from exporters.documents.diagnosis import TierLook
from rules.engines.registry import ENGINES
from rules.evaluator.observation import Observation, ReplicaScrape
from rules.gpu_sources.exporter import GpuExporter
from rules.gpu_sources.registry import EXPORTERS, detect_exporter
from rules.plan.gpus import engine_kv_tokens
from rules.plan.load_bins import TierContext, build_tier_context
from rules.plan.schema import TierPlan
from rules.telemetry.snapshots import ENGINE_VERSION, Snapshot
from rules.telemetry.windows import group_by, is_restart

INTERVAL_SECONDS = 15.0
"""Time between two scrapes, in seconds: that of the daemon."""

PATHS = ("/metrics", "/prometheus/metrics")
"""Paths of metrics pages; the second is that of trtllm-serve."""

EXAMPLES = "http://127.0.0.1:8000/metrics or 127.0.0.1:8000"

HOST_AND_PORT = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:]+\]):\d{1,5}(?:/\S*)?")

Progress = Callable[[float], None]
"""Function that shows how much of the look is over (0 to 1)."""

NO_ENGINE = (ScrapeFailure.INCONSISTENT, ScrapeFailure.NOT_ONE_ENGINE)
"""Failures of a page that is sound, but of another program."""

TITLES = {engine.name: engine.title for engine in ENGINES}

Ways = dict[str, Any]
"""Fields of a Peer: credentials and certificates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """Objectives in seconds, None for none."""

    ttft: float | None
    tpot: float | None


class FoundPages(NamedTuple):
    """Engines and GPU exporters (by URL) at some addresses, why others are neither, and what is an address."""

    engines: tuple[EngineProbe, ...]
    gpu_pages: Mapping[str, GpuExporter]
    problems: tuple[str, ...]
    places: tuple[str, ...]


def find_pages(places: Sequence[str], ways: Ways) -> FoundPages:
    """Return the engines and GPU exporters at these addresses (URL or host:port).

    A wrong address is a problem; raise ConfigError where all are.
    """
    places = tuple(dict.fromkeys(places))
    with ThreadPoolExecutor(max_workers=16, thread_name_prefix="look") as pool:
        answers = tuple(pool.map(lambda place: _find_page(place, ways), places))
    wrong = [answer for answer in answers if isinstance(answer, ConfigError)]
    if len(wrong) == len(answers):
        raise ConfigError(tuple(problem for error in wrong for problem in error.problems))
    # Two spellings of an address are one engine: localhost:8000 and 127.0.0.1:8000 too.
    probes = (answer for answer in answers if isinstance(answer, EngineProbe))
    engines = {normalize_url(probe.url): probe for probe in probes}
    gpu_pages = dict(answer for answer in answers if isinstance(answer, tuple))
    problems = ["; ".join(str(answer).splitlines()) for answer in answers if isinstance(answer, str | ConfigError)]
    if not engines:
        problems += [f"{place_of(url)}: a page of {exporter.title}, no engine" for url, exporter in gpu_pages.items()]
    sound = [place for place, answer in zip(places, answers, strict=True) if not isinstance(answer, ConfigError)]
    return FoundPages(tuple(engines.values()), gpu_pages, tuple(problems), tuple(sound))


def _is_address(place: str) -> bool:
    try:
        urlsplit(place)
    except ValueError:
        return False
    return "://" in place or HOST_AND_PORT.fullmatch(place) is not None


def _find_page(place: str, ways: Ways) -> EngineProbe | tuple[str, GpuExporter] | ConfigError | str:
    """Return the engine or GPU exporter at an address, or why it is neither. A wrong address is a ConfigError."""
    if not _is_address(place):
        # A password may stand before the host.
        return ConfigError((f"{place.rpartition('@')[2]!r}: no file, and no address such as {EXAMPLES}",))
    url = _list_urls(place)[0]
    shown = place_of(url)
    try:
        answer = find_engine(place, ways)
        if isinstance(answer, EngineProbe):
            return answer
        exporter = None
        if answer.kind in NO_ENGINE:
            exporter = _find_gpu_exporter(Peer.read(dict(url=url, **ways)))
    except ScrapeError as error:
        return f"{shown}: {error.text}"
    except ConfigError as error:
        return ConfigError(tuple(f"{shown}: {problem}" for problem in error.problems))
    if exporter is not None:
        return url, exporter
    if shown in answer.text:
        return answer.text
    return f"{shown}: {answer.text}"


def _find_gpu_exporter(peer: Peer) -> GpuExporter | None:
    """Return the GPU exporter at an address, None if its page is of another program. Raise ScrapeError."""
    parsed = SeriesReader(lambda name: any(exporter.wanted(name) for exporter in EXPORTERS)).read(fetch_page(peer))
    return detect_exporter((name, labels) for name, labels, _ in samples(parsed))


def find_engine(place: str, ways: Ways) -> EngineProbe | ScrapeError:
    """Return the engine at an address, or the first error. Without a path the usual ones are asked."""
    errors = []
    for url in _list_urls(place):
        try:
            return probe_engine(Peer.read(dict(url=url, **ways)))
        except ScrapeError as error:
            errors.append(error)
    return errors[0]


def _list_urls(place: str) -> list[str]:
    url = urlsplit(place if "://" in place else f"http://{place}")
    paths = PATHS if url.path in ("", "/") else (url.path,)
    return [urlunsplit(url._replace(path=path)) for path in paths]


def look_at_engines(
    pages: FoundPages, ways: Ways, seconds: float, objectives: Objectives, show: Progress
) -> tuple[TierLook, ...]:
    """Scrape running engines for so many seconds and return the look at each tier: engines that are alike."""
    engines = pages.engines
    readers = _list_gpu_readers(pages, ways)
    reader = HostGpus(readers)
    collector = GpuCollector(reader)
    collector.read_gpus(time.time())
    gpus = {probe.url: find_gpus(probe, engines, reader.hosts, collector.latest) for probe in engines}
    products = {url: describe_gpus(map(collector.latest.__getitem__, known.gpus)) for url, known in gpus.items()}
    tiers = _name_tiers(engines, products)
    targets = [
        Target(
            tier=tiers[probe.url],
            replica=_name_replica(probe, engines),
            pool="mixed",
            peer=Peer.read(dict(url=probe.url, timeout_seconds=INTERVAL_SECONDS * 0.8, **ways)),
            engine=probe.engine.name,
            gpus=gpus[probe.url].measured,
        )
        for probe in engines
    ]
    with closing(Scrapers(targets)) as scrapers, closing(collector):
        source = ScrapeSource(targets, scrapers, collector)
        observations = tuple(_observe(source, seconds, show))
    measured = {key[0] for cycle in observations for key, owned in cycle.gpus.items() if owned.windows}
    exporters = [page for _, page in readers if isinstance(page, ExporterPage)]
    standing = {gpu: codes for page in exporters for gpu, codes in page.standing_faults.items() if codes}
    texts = {}
    for tier, group in group_by(engines, lambda probe: tiers[probe.url]).items():
        known = dict.fromkeys(gpu for probe in group for gpu in gpus[probe.url].gpus)
        parts = [describe_gpus(map(collector.latest.__getitem__, known))]
        parts += dict.fromkeys(gpus[probe.url].doubt for probe in group)
        if any(gpus[probe.url].measured for probe in group) and tier not in measured:
            parts.append(f"not measured again within {seconds:g} s")
        faulty = known.keys() & standing.keys()
        parts += [f"{gpu} shows {', '.join(sorted(standing[gpu]))}, since when is not known" for gpu in sorted(faulty)]
        texts[tier] = "; ".join(filter(None, parts))
    return _look(observations, objectives, texts, is_dated=True)


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
            ReplicaScrape(tier=page.facts.get("model", "engine"), replica=name or paths[0].name, t=t, snapshot=page)
            for name, page in engines.items()
        )
        observations.append(Observation(now=t, scrapes=tuple(scrapes)))
    if len({text.partition(" is of ")[2] for text in engines_of}) > 1:
        raise ConfigError((f"{', '.join(engines_of)}: two pages of one engine are needed",))
    return _look(observations, objectives, {}, is_dated=False)


def _look(
    observations: Sequence[Observation], objectives: Objectives, gpus: Mapping[str, str], is_dated: bool
) -> tuple[TierLook, ...]:
    """Evaluate the observations and return the look at each tier that gave a page."""
    last: dict[str, dict[str, Snapshot]] = {}
    contexts: dict[str, TierContext] = {}
    troubles: dict[tuple[str, str], str] = {}
    for scrape in (scrape for observation in observations for scrape in observation.scrapes):
        page = scrape.snapshot
        if page is None:
            troubles[scrape.key] = f"{scrape.replica} stopped answering: {scrape.error}"
            continue
        if scrape.tier not in contexts:
            contexts[scrape.tier] = build_tier_context(scrape.tier, _assumed_plan(page, objectives))
        pages = last.setdefault(scrape.tier, {})
        before = pages.get(scrape.replica, page)
        if is_restart(before, page):
            troubles[scrape.key] = f"{scrape.replica} restarted during the look, or its pages are of two engines"
        elif any(before.counters.get(name, 0.0) > page.counters.get(name, 0.0) for name in WORK):
            troubles[scrape.key] = f"{scrape.replica} counts backwards: are its pages in order, and of one engine?"
        pages[scrape.replica] = page
    replay = Replay("first look", contexts, step_seconds=1e9)
    for observation in observations:
        replay.evaluate(observation)
    replay.finish()
    looks = []
    for tier, pages in last.items():
        texts = tuple(text for key, text in troubles.items() if key[0] == tier)
        words = {}
        for name, page in pages.items():
            words[name] = f"{TITLES[page.engine]} {read_release(page)}".rstrip()
        looks.append(look_at_tier(replay, tier, pages, words, gpus.get(tier, ""), is_dated, texts))
    return tuple(looks)


def read_release(page: Snapshot) -> str:
    """Return the release of a page's engine, or of its several engines, "" where it tells none."""
    return page.facts.get(ENGINE_VERSION) or page.facts.get("engine_versions", "")


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


def _name_tiers(engines: Sequence[EngineProbe], gpus: Mapping[str, str]) -> dict[str, str]:
    """Return the tier of each engine by its URL: the model, with what differs between the engines that serve it."""
    tiers = {}
    for model, group in group_by(engines, lambda probe: probe.model).items():
        rows = {probe.url: _describe_kind(probe, group, gpus[probe.url]) for probe in group}
        columns = tuple(zip(*rows.values(), strict=True))
        # What an engine does not tell sets it apart from no other.
        differing = [place for place, column in enumerate(columns) if all(column) and len(set(column)) > 1]
        for url, row in rows.items():
            words = ", ".join(row[place] for place in differing)
            tiers[url] = f"{model or 'engine'} with {words}" if words else model or "engine"
    return tiers


def _describe_kind(probe: EngineProbe, group: Sequence[EngineProbe], gpus: str) -> tuple[str, ...]:
    """Return engine, release, GPUs and size of the KV cache in words, "" for each that is not known."""
    sizes = [engine_kv_tokens(engine.page.facts) or 0.0 for engine in group]
    own = engine_kv_tokens(probe.page.facts) or 0.0
    # Engines of the same GPU and settings have KV caches that differ by less.
    alike = min(size for size in sizes if size >= 0.9 * own)
    release = probe.page.facts.get(ENGINE_VERSION, "")
    cache = ""
    if own:
        cache = f"KV cache of {alike:,.0f} tokens"
    return probe.engine.title, f"release {release}" if release else "", gpus, cache


def _list_gpu_readers(pages: FoundPages, ways: Ways) -> list[tuple[str, GpuReader]]:
    """Return the reader of NVML where all engines run here, else those of the exporters, each with its host."""
    if all(find_host(probe.url) == "" for probe in pages.engines):
        # On demand: NVML takes memory.
        from agent.gpu.nvml_reader import NvmlReader, list_local_gpus

        if list_local_gpus():
            return [("", NvmlReader())]
    return [
        (find_host(url), ExporterPage(PageFetcher(Peer.read(dict(url=url, **ways))), exporter))
        for url, exporter in pages.gpu_pages.items()
    ]


def _name_replica(probe: EngineProbe, engines: Sequence[EngineProbe]) -> str:
    """Return host and port, with the path where two engines share them."""
    parts = urlsplit(probe.url)
    shared = [engine for engine in engines if urlsplit(engine.url).netloc == parts.netloc]
    if len(shared) == 1:
        return parts.netloc
    return parts.netloc + parts.path
