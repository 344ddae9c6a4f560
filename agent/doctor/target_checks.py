"""Checks of the targets: reachable, readable, in time, as planned.

Pure. A new engine needs a name in `rules.telemetry.snapshots.KV_FORMATS` if its pages name the format of the KV cache otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.config.load import LoadedConfig
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.doctor.machine import NO_GPU
from agent.doctor.page_probes import TargetProbe
from agent.errors import ScrapeFailure
from agent.http_client.errors import place_of
from rules.catalogue.registry import RULES
from rules.catalogue.thresholds import BURNS
from rules.engines.coverage import FULL_PLAN, Use, engine_signals, explain_families, version_range
from rules.engines.registry import ENGINES, normalize_name, strip_wrapper_prefix
from rules.engines.table import EngineTable
from rules.evaluator.benchmark_check import ASKED
from rules.plan.memory import engine_kv_tokens, kv_shortfall, memory_floor
from rules.plan.mistakes import case_of
from rules.plan.schema import TierPlan, same_model
from rules.telemetry.families import BY_NAME, FamilyKind
from rules.telemetry.gauges import IN_SYSTEM
from rules.telemetry.readings import read, window_since_start
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.snapshots import KV_FORMATS, GpuReadout, Snapshot
from rules.telemetry.windows import NET_CHANGE
from rules.verdicts.rule import Rule

CLOCK_SECONDS = 5.0
"""Limit in seconds of a clock's error. Start times and the order of events are wrong by as much."""

MISSED = ASKED | {"KvCacheCascade", "TtftSloBurn", "TpotSloBurn", "AvailabilityBurn"}
"""Rules that every tier with a plan should have. Others (LoRA, speculation, KV transfer) are often off on purpose."""

PROMISED = frozenset(BURNS)
"""Rules that a tier should have if its plan has their objective."""

NEARLY = 0.5
"""Share of the timeout or the size limit above which a page gets a warning."""

ADVICE: Mapping[ScrapeFailure, str] = {
    ScrapeFailure.CONNECT: "start the engine, or correct the url; inside a container 127.0.0.1 is the container itself",
    ScrapeFailure.TIMEOUT: "look at the load of the engine's front end, or raise scrape_timeout",
    ScrapeFailure.TLS: "correct the target's tls or url",
    ScrapeFailure.AUTH: "correct the target's bearer_token_file or basic_auth",
    ScrapeFailure.HTTP_STATUS: "correct the url, where it is right look at the engine; try it with: sizewatch inspect URL",
    ScrapeFailure.REDIRECT: "write the final address as url",
    ScrapeFailure.TOO_LARGE: "look at what the page holds; raise max_page_bytes only where its bytes are right",
    ScrapeFailure.CUT_OFF: "look at what stands between here and the engine (a proxy with a limit?)",
    ScrapeFailure.CONTENT_TYPE: "correct the url: this is not the engine's metrics page",
    ScrapeFailure.SYNTAX: "look at the page: sizewatch inspect URL; a proxy may have changed it",
    ScrapeFailure.DUPLICATE: "look at the page: two engines or exporters are merged in it, and no label tells them apart",
    ScrapeFailure.NOT_ONE_ENGINE: "give each engine's own page as a target; what stands in front of engines is no replica",
    ScrapeFailure.INCONSISTENT: "correct the url or the target's engine; sizewatch inspect URL shows the page",
}

BY_PROXY = (ScrapeFailure.CONNECT, ScrapeFailure.TIMEOUT)
PROXIES_UNUSED = "; the proxy of the environment (HTTP_PROXY, HTTPS_PROXY) is not used for engines"

KV_AUTO = "auto"
"""Value of vLLM for the type of the model or its checkpoint."""

FORMATS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
"""Other spellings of number formats. All variants of FP8 (fp8_e4m3, fp8_e5m2) count as fp8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetContext:
    """Probed target with the plan of its tier and its GPUs."""

    seen: TargetProbe
    tier: TierPlan | None
    owned: tuple[GpuReadout, ...] = ()
    readable: Sequence[GpuReadout] = ()

    @property
    def name(self) -> str:
        return f"{self.seen.target.tier}/{self.seen.target.replica}"


def check_page(met: TargetContext, _: LoadedConfig) -> Iterator[CheckResult]:
    """Check that the page is reachable, complete, in time and not too large."""
    seen, check = met.seen, f"target {met.name}"
    options = seen.target.options
    if seen.unknown_host:
        text = f"{place_of(options.url)}: the host has no address here ({seen.unknown_host})"
        yield fail(check, text, "correct the url, or the name service of this machine or pod")
    elif seen.error is not None:
        unused = PROXIES_UNUSED if seen.proxies and seen.error.kind in BY_PROXY else ""
        yield fail(check, f"{seen.error.kind.value}: {seen.error.text}", ADVICE[seen.error.kind] + unused)
    else:
        told = f"{seen.page_bytes / 1000:.1f} kB in {seen.seconds * 1000:.0f} ms"
        yield ok(
            check, f"{place_of(options.url)}: {told}" + (f"; {seen.holds}, this is a replica" if seen.holds else "")
        )
        if seen.page_bytes > NEARLY * options.max_bytes:
            yield warn(check, f"its page of {told} nears max_page_bytes ({options.max_bytes})", "raise max_page_bytes")
        if seen.seconds > NEARLY * options.timeout_seconds:
            text = f"{told} nears its timeout of {options.timeout_seconds:g} s"
            yield warn(check, text, ADVICE[ScrapeFailure.TIMEOUT])
        if seen.several:
            text = f"several engines answer at {place_of(options.url)}: {seen.several}"
            advice = (
                "give each engine's own address, not that of a load balancer: together their counters make no sense"
            )
            yield fail(check, text, advice)


def check_names(met: TargetContext, _: LoadedConfig) -> Iterator[CheckResult]:
    """Report the engine, and the signals and rules that its page supports."""
    seen, check, snapshot = met.seen, f"engine {met.name}", met.seen.snapshot
    engine = _engine(snapshot)
    if snapshot is None or engine is None:
        return
    known, missing = _signals(snapshot)
    text = f"{engine.label}{_release(seen, engine)}: {known} of {known + len(missing)} signals"
    yield ok(check, text + (f"; not exposed: {', '.join(missing)}" if missing else ""))
    mute = [rule.name for rule in RULES if _is_mute(rule, snapshot, missing) and _is_wanted(rule, met.tier)]
    if mute:
        advice = "look up the engine's release and flags in docs, or update it; until then these rules judge nothing"
        yield warn(check, f"{', '.join(mute)} will say not_exposed", advice)
    # Contradictory values point to the engine or to relabelled names.
    for problem in sorted(snapshot.problems, key=lambda one: not _contradicts(one, snapshot)):
        level = fail if _contradicts(problem, snapshot) else warn
        yield level(check, f"trouble on its page: {problem}", "look at the page: sizewatch inspect URL")
    fresh = _unknown_names(seen, engine)
    if fresh:
        shown = ", ".join(fresh[:5]) + (", ..." if len(fresh) > 5 else "")
        yield ok(check, f"{len(fresh)} names that this sizewatch does not know, perhaps of a newer release: {shown}")


def _is_wanted(rule: Rule, tier: TierPlan | None) -> bool:
    """Return whether a tier should have the rule, whatever its plan says, or because of its objectives."""
    promised = tier is not None and getattr(tier.slo, rule.needs.removeprefix("slo."), None) is not None
    return rule.name in MISSED or (rule.name in PROMISED and promised)


def _is_mute(rule: Rule, snapshot: Snapshot, missing: Collection[str]) -> bool:
    """Return whether the page lacks the data of a rule: its signal, or the histogram whose requests it counts."""
    family = BY_NAME.get(rule.family)
    counted = family is not None and family.kind is FamilyKind.HISTOGRAM
    return rule.signal in missing or (counted and rule.family not in snapshot.histograms)


def check_clock(met: TargetContext, _: LoadedConfig) -> Iterator[CheckResult]:
    """Compare the target's clock with ours."""
    check, snapshot, ahead = f"clock {met.name}", met.seen.snapshot, met.seen.clock_ahead_seconds
    if snapshot is None:
        return
    advice = "run a time service (chrony, systemd-timesyncd) on both machines"
    started_in = (snapshot.started_at or 0.0) - met.seen.t
    if ahead is not None and abs(ahead) > CLOCK_SECONDS:
        side = "ahead of" if ahead > 0 else "behind"
        yield warn(check, f"the target's clock is {abs(ahead):.0f} s {side} this machine's", advice)
    elif started_in > CLOCK_SECONDS:
        yield warn(check, f"its process says it started {started_in:.0f} s in the future", advice)
    else:
        told = "agrees to within a few seconds" if ahead is not None else "not compared: the target sends no Date"
        yield ok(check, told)


def check_plan_match(met: TargetContext, _: LoadedConfig) -> Iterator[CheckResult]:
    """Compare engine, model, KV cache and GPUs with the plan."""
    check, snapshot, tier = f"plan {met.name}", met.seen.snapshot, met.tier
    if snapshot is None or tier is None:
        return
    found = [*_engine_and_model(check, snapshot, tier), *_kv_format(check, snapshot, tier)]
    found += [*_kv_budget(check, snapshot, tier), *_gpus(check, met, tier)]
    if not found:
        found = [ok(check, _describe_match(met, snapshot, tier))]
    yield from found


def _describe_match(met: TargetContext, snapshot: Snapshot, tier: TierPlan) -> str:
    """Return what was compared and is as planned, and that the model was not where the page tells none."""
    told, known = _kv_told(snapshot), bool(snapshot.facts.get("model"))
    said = [f"model {tier.model}"] if known else [f"engine {tier.engine}"]
    said += [f"KV cache {told}"] if told else []
    said += [f"{len(met.owned)} x {tier.gpu.product}"] if met.owned else []
    text = f"as planned: {', '.join(said)}"
    return text if known else f"{text}; the page tells no model, {tier.model} is the plan's alone"


def _engine(snapshot: Snapshot | None) -> EngineTable | None:
    if snapshot is None:
        return None
    return next(e for e in ENGINES if (e.name, e.generation) == (snapshot.engine, snapshot.generation))


def _contradicts(problem: str, snapshot: Snapshot) -> bool:
    return problem.partition(": ")[0] in snapshot.contradictory


def _signals(snapshot: Snapshot) -> tuple[int, list[str]]:
    """Return the number of signals of the page, and the missing ones.

    A signal that needs traffic or a second page is not missing.
    """
    window = window_since_start(snapshot)
    if all(name in snapshot.gauges for name in IN_SYSTEM):
        window = replace(window, counters={**window.counters, NET_CHANGE: 0.0})
    found = {signal.name: read(signal, window, FULL_PLAN) for signal in engine_signals()}
    missing = [name for name, value in found.items() if isinstance(value, Missing) and value.gap is Gap.NOT_EXPOSED]
    return len(found) - len(missing), missing


def _release(seen: TargetProbe, engine: EngineTable) -> str:
    """Return the release by the configuration and by the names on the page, in parentheses."""
    told, given = version_range(engine, seen.families), seen.target.engine_version
    said = [f"{given} by the configuration"] if given else []
    said += [f"{told} by its names"] if told else []
    return f" ({', '.join(said)})" if said else ""


def _unknown_names(seen: TargetProbe, engine: EngineTable) -> list[str]:
    """Return families with the engine's prefix that are not in its table."""
    own = engine.signatures[0].partition("_")[0] + "_"
    unknown = [use.name for use in explain_families(engine, seen.families) if use.use is Use.UNKNOWN]
    return sorted(
        name
        for name in (strip_wrapper_prefix(normalize_name(name), engine) for name in unknown)
        if name.startswith(own)
    )


def _engine_and_model(check: str, snapshot: Snapshot, tier: TierPlan) -> Iterator[CheckResult]:
    if snapshot.engine != tier.engine:
        text = (
            f"{snapshot.engine} runs, the plan was measured with {tier.engine}: their latencies mean different things"
        )
        yield fail(check, text, "benchmark with the engine that runs, or move the target to its own tier")
    served = [name for name in snapshot.facts.get("model", "").split(",") if name]
    if served and not any(same_model(name, tier.model) for name in served):
        text = f"serves {', '.join(served)}, the plan's tier is for {tier.model}"
        yield fail(
            check, text, "move the target to its own tier, or correct the plan's model to what the engine reports"
        )


def _kv_format(check: str, snapshot: Snapshot, tier: TierPlan) -> Iterator[CheckResult]:
    told = _kv_told(snapshot)
    planned = tier.precision.kv if tier.precision else None
    if not told or not planned:
        return
    if told == KV_AUTO:
        if _format(planned) == "fp8":
            text = f"the KV cache is of type auto (the model's own, or its checkpoint's), the plan says {planned}"
            yield warn(
                check, text, f"start the engine with --kv-cache-dtype {planned}, so that its page can confirm it"
            )
    elif _format(told) != _format(planned):
        text = f"the KV cache is {told}, the plan says {planned}: it holds another number of tokens than was planned"
        yield fail(check, text, f"start the engine with --kv-cache-dtype {planned}, or plan with {told}")


def _kv_budget(check: str, snapshot: Snapshot, tier: TierPlan) -> Iterator[CheckResult]:
    """Yield a KV cache too small for the planned requests at once (guide 2.2)."""
    tokens = engine_kv_tokens(snapshot.facts, tier.architecture)
    if tokens is not None and (short := kv_shortfall(tokens, memory_floor(case_of(tier)))):
        yield warn(check, short, "lower C_max in the plan, use an FP8 KV cache, or give a replica more GPUs")


def _kv_told(snapshot: Snapshot) -> str:
    return next((snapshot.facts[fact] for fact in KV_FORMATS if fact in snapshot.facts), "")


def _format(text: str) -> str:
    lowered = text.casefold()
    return "fp8" if lowered.startswith("fp8") else FORMATS.get(lowered, lowered)


def _gpus(check: str, met: TargetContext, tier: TierPlan) -> Iterator[CheckResult]:
    planned = f"{tier.gpu.per_replica} x {tier.gpu.product}"
    configured = met.seen.target.gpus
    if met.seen.pid_trouble:
        yield fail(check, f"pid_file: {met.seen.pid_trouble}", "correct pid_file, or list the target's gpus")
    if tier.gpu.product.casefold() in NO_GPU or not met.readable:
        return
    if not met.owned:
        known = ", ".join(gpu.gpu if gpu.index is None else str(gpu.index) for gpu in met.readable)
        text = f"which of the GPUs {known} belong to it is not known; the plan says {planned}"
        yield warn(check, text, "list them in the target's gpus (UUID or index), or give pid_file")
        return
    lost = len(configured) - len(met.owned) if configured != ("auto",) else 0
    if lost:
        yield fail(check, f"{lost} of its gpus are not on this machine", "compare gpus with `nvidia-smi -L`")
    elif len(met.owned) != tier.gpu.per_replica:
        text = f"owns {len(met.owned)} GPUs, the plan says {planned} a replica"
        yield fail(check, text, "correct gpus, or plan with the number that it runs on")
    others = sorted(
        {gpu.product for gpu in met.owned if gpu.product and not _same_product(gpu.product, tier.gpu.product)}
    )
    if others:
        text = f"runs on {', '.join(others)}, the plan was measured on {tier.gpu.product}"
        yield fail(check, text, "move the target to the tier of its hardware, or correct the plan's gpu.product")


def _same_product(shown: str, planned: str) -> bool:
    plain = [name.casefold().removeprefix("nvidia ").removeprefix("amd ").strip() for name in (shown, planned)]
    return plain[0] == plain[1]
