"""Pages of the targets, read once each, and the checks of each: reachable, readable, in time, as planned.

A list of targets is enough. A new engine needs a name in `rules.telemetry.snapshots.KV_FORMATS` if its pages name the format
of the KV cache otherwise.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime

from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.errors import ScrapeError
from agent.gpu.owners import AUTO, GpuAssignment
from agent.http_client.client import PageFetcher, fetch_page, place_of
from agent.scrape.scrapers import PageReader, Target, target_of_engine
from rules.catalogue.registry import BURNS, RULES
from rules.engines.coverage import ENGINE_SIGNALS, version_range
from rules.engines.registry import ENGINES
from rules.evaluator.benchmark_check import ASKED
from rules.plan.gpus import engine_kv_tokens, kv_shortfall
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import TierPlan, same_model
from rules.telemetry.families import BY_NAME, FamilyKind
from rules.telemetry.gauges import IN_SYSTEM
from rules.telemetry.readings import read, window_since_start
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.snapshots import KV_FORMATS, GpuReadout, Snapshot
from rules.telemetry.windows import NET_CHANGE
from rules.verdicts.rule import Rule

MOST_THREADS = 32
"""Targets that are read at a time."""

FURTHER_PAGES = 2
"""Number of further pages over new connections. Behind a load balancer some of them are of other engines."""

NO_GPUS = GpuAssignment(gpus=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPage:
    """Page of a target, or the error. One of each engine of a shared page.

    `tier` is the plan of its tier, `gpus` are its GPUs and `readouts` all GPUs that were read.
    """

    target: Target
    error: ScrapeError | None = None
    page_bytes: int = 0
    seconds: float = 0.0
    snapshot: Snapshot | None = None
    families: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    """Number of engines on a shared page, in words."""
    clock_ahead_seconds: float | None = None
    """Minimum lead of the target's clock (negative: behind), None without a Date header."""
    difference: str = ""
    """Evidence that several processes answer at the address."""
    tier: TierPlan | None = None
    gpus: GpuAssignment = NO_GPUS
    readouts: Sequence[GpuReadout] = ()

    @property
    def name(self) -> str:
        return f"{self.target.tier}/{self.target.replica}"


def read_targets(targets: Sequence[Target], clock: Callable[[], float]) -> tuple[TargetPage, ...]:
    """Read all pages in parallel. Each target takes at most three times its timeout. `clock` returns unix seconds."""
    with ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="doctor") as pool:
        return tuple(itertools.chain.from_iterable(pool.map(lambda target: _read_target(target, clock), targets)))


def _read_target(target: Target, clock: Callable[[], float]) -> tuple[TargetPage, ...]:
    reader, started_at, before = PageReader(target.engine), time.monotonic(), clock()
    try:
        with closing(PageFetcher(target.peer)) as fetcher:
            body = fetcher.fetch()
            seconds, after = time.monotonic() - started_at, clock()
        engines = reader.read_engines(body, after)
    except ScrapeError as error:
        return (TargetPage(target=target, error=error),)
    page = TargetPage(
        target=target,
        page_bytes=len(body),
        seconds=seconds,
        families=dict(reader.families),
        description=reader.describe_engines(),
        clock_ahead_seconds=_clock_ahead(fetcher.date, before, after),
        difference=_find_difference(target, reader, engines[""], clock) if "" in engines else "",
    )
    return tuple(
        replace(page, target=target_of_engine(target, name), snapshot=snapshot) for name, snapshot in engines.items()
    )


def _find_difference(target: Target, reader: PageReader, first: Snapshot, clock: Callable[[], float]) -> str:
    for _ in range(FURTHER_PAGES):
        try:
            snapshot = reader.read(fetch_page(target.peer), clock())
        except ScrapeError:
            return ""
        if first.facts.get("model") != snapshot.facts.get("model"):
            return "its model changes from one answer to the next"
        if abs((first.started_at or 0.0) - (snapshot.started_at or 0.0)) > 1.0:
            return "the time at which it started changes from one answer to the next"
    return ""


def _clock_ahead(date: str, before: float, after: float) -> float | None:
    """Return the minimum lead of a clock that wrote `date`, in whole seconds, between two times of ours."""
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    return max(theirs - after, 0.0) + min(theirs + 1.0 - before, 0.0)


CLOCK_SECONDS = 5.0
"""Limit in seconds of a clock's error. Start times and the order of events are wrong by as much."""

NEEDED_RULES = ASKED | {"KvCacheCascade", "TtftSloBurn", "TpotSloBurn", "AvailabilityBurn"}
"""Rules that every tier with a plan should have. Others (LoRA, speculation, KV transfer) are often off on purpose."""

NEARLY = 0.5
"""Share of the timeout or the size limit above which a page gets a warning."""

NO_GPU = ("cpu", "none")
"""GPU products of a plan without GPUs."""

FORMATS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
"""Other spellings of number formats. All variants of FP8 (fp8_e4m3, fp8_e5m2) count as fp8."""

LOOK = "look at the page: sizewatch inspect URL"


def check_page(page: TargetPage) -> Iterator[CheckResult]:
    """Check that the page is reachable, complete, in time and not too large."""
    peer, place = page.target.peer, place_of(page.target.peer.url)
    if page.error is not None:
        yield fail(f"{page.error.kind}: {page.error.text}", f"{LOOK}; docs/connections.md has a target's keys")
        return
    size = f"{page.page_bytes / 1000:.1f} kB in {page.seconds * 1000:.0f} ms"
    shared = ""
    if page.description:
        shared = f"; {page.description}, this is a replica"
    yield ok(f"{place}: {size}{shared}")
    if page.page_bytes > NEARLY * peer.max_bytes:
        yield warn(f"its page of {size} nears max_page_bytes ({peer.max_bytes})", "raise max_page_bytes")
    if page.seconds > NEARLY * peer.timeout_seconds:
        text = f"{size} nears its timeout of {peer.timeout_seconds:g} s"
        yield warn(text, "look at the load of the engine's front end, or raise scrape_timeout")
    if page.difference:
        text = f"several engines answer at {place}: {page.difference}"
        yield fail(text, "give each engine's own address, not that of a load balancer")


def check_signals(page: TargetPage) -> Iterator[CheckResult]:
    """Report the engine, and the signals and rules that its page supports."""
    snapshot = page.snapshot
    if snapshot is None:
        return
    engine = next(e for e in ENGINES if (e.name, e.generation) == (snapshot.engine, snapshot.generation))
    count, missing = _find_signals(snapshot, page.tier)
    absent = ""
    if missing:
        absent = f"; not exposed: {', '.join(missing)}"
    sources = {"the configuration": page.target.engine_version, "its names": version_range(engine, page.families)}
    words = ", ".join(f"{release} by {source}" for source, release in sources.items() if release)
    yield ok(f"{engine.label}{words and f' ({words})'}: {count} of {count + len(missing)} signals{absent}")
    mute = [rule.name for rule in RULES if _is_mute(rule, snapshot, missing) and _is_needed(rule, page.tier)]
    if mute:
        advice = "look up the engine's release and flags in docs, or update it; until then these rules judge nothing"
        yield warn(f"{', '.join(mute)} will say not_exposed", advice)
    for problem in snapshot.problems:
        # Contradictory values point to the engine or to relabelled names.
        level = fail if problem.partition(": ")[0] in snapshot.contradictory else warn
        yield level(f"trouble on its page: {problem}", LOOK)


def _find_signals(snapshot: Snapshot, tier: TierPlan | None) -> tuple[int, list[str]]:
    """Return the number of signals of the page, and the missing ones.

    A signal that needs traffic or a second page is not missing. A signal that needs more of the plan does not count.
    """
    window = window_since_start(snapshot)
    if all(name in snapshot.gauges for name in IN_SYSTEM):
        window = replace(window, counters={**window.counters, NET_CHANGE: 0.0})
    facts = build_tier_context("", tier).basis
    gaps = {s.name: v.gap for s in ENGINE_SIGNALS if isinstance(v := read(s, window, facts), Missing)}
    missing = [name for name, gap in gaps.items() if gap is Gap.NOT_EXPOSED]
    unplanned = sum(gap is Gap.NOT_IN_PLAN for gap in gaps.values())
    return len(ENGINE_SIGNALS) - len(missing) - unplanned, missing


def _is_needed(rule: Rule, tier: TierPlan | None) -> bool:
    """Return whether a tier should have the rule, whatever its plan says, or because of its objectives."""
    has_objective = tier is not None and getattr(tier.slo, rule.needs.removeprefix("slo."), None) is not None
    return rule.name in NEEDED_RULES or (rule.name in BURNS and has_objective)


def _is_mute(rule: Rule, snapshot: Snapshot, missing: Collection[str]) -> bool:
    """Return whether the page lacks the data of a rule: its signal, or the histogram whose requests it counts."""
    family = BY_NAME.get(rule.family)
    is_histogram = family is not None and family.kind is FamilyKind.HISTOGRAM
    return rule.signal in missing or (is_histogram and rule.family not in snapshot.histograms)


def check_clock(page: TargetPage) -> Iterator[CheckResult]:
    """Compare the target's clock with ours."""
    ahead = page.clock_ahead_seconds
    if page.snapshot is None:
        return
    advice = "run a time service (chrony, systemd-timesyncd) on both machines"
    if ahead is not None and abs(ahead) > CLOCK_SECONDS:
        side = "behind"
        if ahead > 0:
            side = "ahead of"
        yield warn(f"the target's clock is {abs(ahead):.0f} s {side} this machine's", advice)
    elif ahead is None:
        yield ok("not compared: the target sends no Date")
    else:
        yield ok("agrees to within a few seconds")


def check_plan_match(page: TargetPage) -> Iterator[CheckResult]:
    """Compare engine, model, KV cache and GPUs with the plan."""
    snapshot, tier = page.snapshot, page.tier
    if snapshot is None or tier is None:
        return
    results = [*_compare_engine_and_model(snapshot, tier), *_compare_kv_cache(snapshot, tier)]
    results += _compare_gpus(page, tier)
    yield from results or [ok(_describe_match(page, snapshot, tier))]


def _describe_match(page: TargetPage, snapshot: Snapshot, tier: TierPlan) -> str:
    """Return what was compared and is as planned, and that the model was not where the page has none."""
    kv_format, has_model = _kv_format(snapshot), bool(snapshot.facts.get("model"))
    words = [f"model {tier.model}"] if has_model else [f"engine {tier.engine}"]
    words += [f"KV cache {kv_format}"] if kv_format else []
    words += [f"{len(page.gpus.gpus)} x {tier.gpu.product}"] if page.gpus.gpus else []
    text = f"as planned: {', '.join(words)}"
    if has_model:
        return text
    return f"{text}; the page tells no model, {tier.model} is the plan's alone"


def _compare_engine_and_model(snapshot: Snapshot, tier: TierPlan) -> Iterator[CheckResult]:
    if snapshot.engine != tier.engine:
        text = f"{snapshot.engine} runs, the plan was measured with {tier.engine}: latencies mean different things"
        yield fail(text, "benchmark with the engine that runs, or move the target to its own tier")
    served = list(filter(None, snapshot.facts.get("model", "").split(",")))
    if served and not any(same_model(name, tier.model) for name in served):
        text = f"serves {', '.join(served)}, the plan's tier is for {tier.model}"
        yield fail(text, "move the target to its own tier, or correct the plan's model to what the engine reports")


def _compare_kv_cache(snapshot: Snapshot, tier: TierPlan) -> Iterator[CheckResult]:
    """Compare the format of the KV cache, and its size with the planned requests at once (guide 2.2)."""
    runs, planned = _kv_format(snapshot), tier.precision.kv if tier.precision else None
    if runs and planned and _plain_format(runs) != _plain_format(planned):
        # `auto` is the type of the model or its checkpoint.
        if runs != "auto":
            text = (
                f"the KV cache is {runs}, the plan says {planned}: it holds another number of tokens than was planned"
            )
            yield fail(text, f"start the engine with --kv-cache-dtype {planned}, or plan with {runs}")
        elif _plain_format(planned) == "fp8":
            text = f"the KV cache is of type auto (the model's own, or its checkpoint's), the plan says {planned}"
            yield warn(text, f"start the engine with --kv-cache-dtype {planned}, so that its page can confirm it")
    tokens = engine_kv_tokens(snapshot.facts, tier.architecture)
    if tokens is not None and (short := kv_shortfall(tokens, tier)):
        yield warn(short, "lower C_max in the plan, use an FP8 KV cache, or give a replica more GPUs")


def _kv_format(snapshot: Snapshot) -> str:
    return next((snapshot.facts[fact] for fact in KV_FORMATS if fact in snapshot.facts), "")


def _plain_format(text: str) -> str:
    lowered = text.casefold()
    if lowered.startswith("fp8"):
        return "fp8"
    return FORMATS.get(lowered, lowered)


def _compare_gpus(page: TargetPage, tier: TierPlan) -> Iterator[CheckResult]:
    if tier.gpu.product.casefold() in NO_GPU or not page.readouts:
        return
    planned, target = f"{tier.gpu.per_replica} x {tier.gpu.product}", page.target
    products = {readout.gpu: readout.product for readout in page.readouts}
    gpus, advice = page.gpus.gpus, "list them in the target's gpus (UUID or index), or give pid_file"
    if page.gpus.missing:
        level = fail if target.pid_file or target.gpus not in ((), AUTO) else warn
        yield level(page.gpus.missing, f"compare gpus with `nvidia-smi -L`; {advice}")
    elif not gpus:
        text = f"which of the GPUs {', '.join(products)} belong to it is not known; the plan says {planned}"
        yield warn(text, advice)
    elif len(gpus) != tier.gpu.per_replica:
        text = f"GPUs that it owns: {len(gpus)}; the plan says {planned} a replica"
        yield fail(text, "correct gpus, or plan with the number that it runs on")
    plain = _plain_product(tier.gpu.product)
    texts = {products[gpu] for gpu in gpus if products[gpu] and _plain_product(products[gpu]) != plain}
    if texts:
        text = f"runs on {', '.join(sorted(texts))}, the plan was measured on {tier.gpu.product}"
        yield fail(text, "move the target to the tier of its hardware, or correct the plan's gpu.product")


def _plain_product(name: str) -> str:
    return name.casefold().removeprefix("nvidia ").removeprefix("amd ").strip()
