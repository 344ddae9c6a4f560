"""Configuration and starts against the plan (guide 8.2, 9.2, 9.3, 9.5).

No metric shows that a number format runs converted. Engines expose no hits, loads or evictions of LoRA adapters, only
held-back requests and lists of adapters. A start that was timed in part is a lower bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from operator import itemgetter
from typing import NamedTuple

from rules.confidence import Certainty
from rules.methods.evidence import best_value, capitalize, exact_reading, join_names, measure_parts, range_reading
from rules.plan.gpus import UNPACKED, find_product, needed_format
from rules.plan.money import price_of
from rules.replicas.starts import FROM_TO, ReplicaStart, StartQuantiles, Timing, quantiles_by_timing
from rules.telemetry.reading_methods import mean_level, replica_rate
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.snapshots import ENGINE_VERSION, RELEASE, is_same_release, release_numbers
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS, Window
from rules.telemetry.wording import format_count, number, spread
from rules.verdicts.context import RuleContext, is_persistent, read_plan_value
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import RuleResult, Status


def judge_precision(context: RuleContext) -> RuleResult:
    """Compare the planned formats of weights and KV cache with those of the GPU."""
    plan = context.tier.plan
    if plan is None or plan.precision is None or not (plan.precision.weights or plan.precision.kv):
        return context.unknown(Gap.NOT_IN_PLAN, "the plan has no precision")
    written = {"weights": plan.precision.weights, "KV cache": plan.precision.kv}
    needs = {part: needed_format(format) for part, format in written.items() if format}
    gpu = find_product(plan.gpu.product)
    if gpu is None:
        text = f"{plan.gpu.product} is not in the table of GPUs: what it computes in hardware is not known"
        return context.unknown(Gap.NOT_IN_PLAN, text)
    wrong = {part: need for part, need in needs.items() if need and not gpu.computes(need, context.limit(need))}
    if None in needs.values() and not wrong:
        strange = next(str(written[part]) for part, need in needs.items() if need is None)
        return context.unknown(Gap.NOT_IN_PLAN, f"{strange} is no format whose needs are known")
    wanted = max((context.limit(need) for need in needs.values() if need), default=0.0)
    observed, expected = exact_reading(gpu.capability, 1.0), range_reading(wanted, None, 1.0)
    if not wrong:
        formats = ", ".join(f"{part} in {written[part]}" for part in needs)
        sentence = f"{plan.gpu.product} computes what is planned: {formats}"
        return context.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence)
    runs = {"weights": "they run converted, without the planned speed-up", "KV cache": "memory is saved, time is not"}
    first, *details = (f"no hardware path for {part} in {written[part]}; {runs[part]}" for part in wrong)
    if gpu.capability is not None:
        details.append(f"compute capability {gpu.capability:.1f}, {wanted:g} or more is needed")
    certainty = Certainty.of("weights" in wrong and wrong["weights"] not in UNPACKED)
    sentence = f"{plan.gpu.product} has {first}"
    return context.verdict(Status.WARNING, certainty, observed, expected, sentence, details=details)


MEASURED_FACTS = (
    ("engine_version", ENGINE_VERSION, "release"),
    ("max_num_seqs", "max_num_seqs", "max-num-seqs"),
    ("tensor_parallel", "tensor_parallel_size", "tensor parallel degree"),
)
"""Keys of `curve.measured` that pages tell, the fact of the page, and words."""


def judge_benchmark_stale(context: RuleContext) -> RuleResult:
    """Compare release, batch limit and parallelism of the replicas' pages with what was benchmarked."""
    measured = read_plan_value(context.tier, "curve.measured")
    wanted = {key: str(value) for key, *_ in MEASURED_FACTS if (value := getattr(measured, key, None))}
    if not wanted:
        text = "the plan does not tell which release was benchmarked (curve.measured.engine_version)"
        return context.unknown(Gap.NOT_IN_PLAN, text)
    pages = [replica.track.last.facts for replica in context.replicas if replica.track.last is not None]
    if not pages:
        return context.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    known = [same for facts in pages if (same := _compare_facts(wanted, facts)) is not None]
    texts = list(filter(None, known))
    benchmarked = ", ".join(f"{words} {wanted[key]}" for key, _, words in MEASURED_FACTS if key in wanted)
    if not known:
        return context.unknown(Gap.NOT_EXPOSED, f"{benchmarked} was benchmarked; the pages do not tell what runs")
    observed, expected = exact_reading(float(len(texts)), float(len(known))), exact_reading(0.0, 1.0)
    count = len(texts or known)
    who = f"All {count} replicas run" if count == len(pages) else f"{count} of {len(pages)} replicas run"
    who = "The replica runs" if len(pages) == 1 else who
    if not texts:
        sentence, certainty = f"{who} what was benchmarked: {benchmarked}", Certainty.of(len(known) == len(pages))
        return context.verdict(Status.OK, certainty, observed, expected, sentence)
    what = " and ".join(f"{text} ({texts.count(text)})" for text in dict.fromkeys(texts))
    what = what if len(set(texts)) > 1 else texts[0]
    status = Status.OK if len(texts) < context.limit("replicas") else Status.WARNING
    sentence, when = f"{who} {what}; {benchmarked} was benchmarked", measured.measured_on
    details = (f"benchmarked on {when}" if when else "",)
    return context.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=details)


def _compare_facts(wanted: Mapping[str, str], facts: Mapping[str, str]) -> str | None:
    """Return what a page tells otherwise than the benchmark: "" for nothing, None if it tells nothing."""
    pairs = [(words, facts.get(fact), wanted[key]) for key, fact, words in MEASURED_FACTS if key in wanted]
    texts = [f"{words} {runs}" for words, runs, was in pairs if runs and not is_same_release(runs, was)]
    allowed = facts.get("engine_versions", "")
    if not facts.get(ENGINE_VERSION) and is_excluded(allowed, wanted.get("engine_version", "")):
        return ", ".join([f"a release {allowed}", *texts])
    return ", ".join(texts) if any(runs for _, runs, _ in pairs) else None


def is_excluded(allowed: str, release: str) -> bool:
    """Return whether words such as "after 0.29.0 and before 0.33.0" exclude a release."""
    match = RELEASE.match(release)
    if match is None:
        return False
    own, rows = release_numbers(match[1]), re.findall(r"(after|before) v?(\d+(?:\.\d+)*)", allowed)
    bounds = [(word, release_numbers(end)) for word, end in rows]
    return any(own == bound or (own > bound) is (word == "before") for word, bound in bounds)


LOADS = ("kv_transfer_seconds", "external_prefix_queried_tokens")
"""Families of a KV connector. With it requests may be held back for KV blocks too."""

READ = frozenset({"adapters_running", "adapters_waiting", "requests_waiting_deferred", "requests_finished", *LOADS})

UNCOUNTED = "how often adapters are loaded is not exposed"
"""Detail of every verdict."""

SILENT_SECONDS = 2 * MINUTE_SECONDS
"""Seconds without a page, while others of the tier answer, after which a replica was stopped."""


class AdapterWait(NamedTuple):
    """Seconds held back per finished request (Little's law), None if not exposed, and adapters of a replica.

    `most` is the maximum of running adapters, `waiting` the mean of adapters with waiting requests.
    """

    seconds: float | None
    most: float
    waiting: float


def judge_adapters(context: RuleContext) -> RuleResult:
    """Compare held-back requests with the TTFT objective, else running adapters with those that fit."""
    total, needed = hold(context.binned).sum_families(READ), context.limit("minimum_requests")
    served = mean_level(total, "adapters_running")
    if isinstance(served, Missing):
        return context.unknown(served.gap, f"no LoRA adapters are exposed: {UNCOUNTED}")
    whole = _measure(total)
    if whole is None or not served.high:
        return context.unknown(Gap.NO_TRAFFIC, "no request with a LoRA adapter was seen")
    finished = total.counters.get("requests_finished", 0.0)
    if finished < needed:
        return context.too_few_requests(finished, needed)
    allowed = context.limit("held_share") * (context.tier.basis.ttft_slo_seconds or context.limit("ttft_slo_seconds"))
    fit = context.tier.plan.lora.max_adapters if context.tier.plan and context.tier.plan.lora else math.inf

    def is_held_back(part: AdapterWait) -> bool:
        return part.seconds is not None and part.seconds > allowed

    def is_crowded(part: AdapterWait) -> bool:
        return part.most >= fit and part.waiting > context.limit("waiting")

    last, each = measure_parts(context, lambda part: _measure(hold(part).sum_families(READ)) if part else None)
    observed, expected = exact_reading(whole.seconds, finished), range_reading(0.0, allowed, finished)
    ran, waited = format_count(int(whole.most), "adapter"), number(whole.seconds or 0.0, "seconds")
    healthy = f"up to {number(allowed, 'seconds')} is healthy"
    fine = "no more adapters ran than fit" if whole.seconds is None else f"requests waited {waited} each, {healthy}"
    status, certain, details = Status.WARNING, False, [UNCOUNTED]
    if is_held_back(whole) and is_persistent(last, each, is_held_back):
        loads = math.fsum(part.n for name in LOADS for part in total.histograms.get(name, ()))
        certain = not loads and not any(map(total.counters.get, LOADS))
        slots = "adapter slots" if certain else "adapter slots or KV loads"
        sentence = f"Requests wait {waited} for {slots} on average; {healthy}"
        details.insert(0, f"at most {ran} ran at once{f', {fit} fit' if fit < math.inf else ''}")
    elif is_crowded(whole) and is_persistent(last, each, is_crowded):
        waiting = f"requests of {number(whole.waiting, '')} adapters wait on average"
        sentence, observed = f"{ran} ran at once where {fit} fit; {waiting}", range_reading(0.0, None, finished)
        expected = Reading(value=0.0, low=0.0, high=None, n=finished)
    elif any(part is not None and (is_held_back(part) or is_crowded(part)) for part in each):
        # Unknown would not end a finding.
        status, details = Status.OK, ["not lastingly, or no longer", UNCOUNTED]
        sentence = capitalize(fine) if whole.seconds is not None else "Requests of adapters waited"
    else:
        return context.unknown(Gap.NOT_EXPOSED, f"{fine}; {UNCOUNTED}")
    return context.verdict(status, Certainty.of(certain), observed, expected, sentence, details=details)


def _measure(total: Window) -> AdapterWait | None:
    """Return the mean wait of a finished request by Little's law, None if not exposed."""
    names = ("adapters_running", "adapters_waiting", "requests_waiting_deferred")
    served, waiting, held = (mean_level(total, name) for name in names)
    rps = replica_rate(total, "requests_finished")
    if isinstance(served, Missing):
        return None
    seconds = (held.value or 0.0) / rps if isinstance(held, Reading) and rps else None
    return AdapterWait(seconds, served.high or 0.0, best_value(waiting) or 0.0)


class StartTimes(NamedTuple):
    """Slowest start of the window, or the P95 of all: seconds, lower bound, number, and words."""

    timing: Timing
    seconds: float
    least: float
    n: float
    sentence: str


def judge_cold_start(context: RuleContext) -> RuleResult:
    """Find starts above the planned time: each start of the window, then the P95 of all known starts."""
    planned = context.tier.plan.cold_start_seconds if context.tier.plan else None
    allowed = math.inf if planned is None else planned * context.limit("factor")
    slowest = (_find_slowest_start(context, timing, planned, allowed) for timing in Timing)
    recent = [start for start in slowest if start is not None]
    known = [_describe_quantiles(quantiles, planned) for quantiles in quantiles_by_timing(context.starts)]
    if planned is None:
        text = "the plan has no cold_start_seconds"
        for start in (*known, *recent)[:1]:
            text += f"; {number(start.seconds, 'seconds')} were measured {FROM_TO[start.timing]}"
        return context.unknown(Gap.NOT_IN_PLAN, text)
    late = [start for start in recent if start.seconds > allowed][:1]
    late += sorted(known, key=lambda start: (start.least > allowed, start.seconds), reverse=True)
    late = [start for start in late if start.seconds > allowed]
    # Whole starts of earlier weeks count before parts of the present ones.
    if all(start.timing is not Timing.POD for start in recent) and any(start.timing is Timing.POD for start in known):
        recent = []
    first = next(iter((*late, *recent, *known)), None)
    if first is None:
        restarts = math.fsum(binned.window.counters.get("restarts", 0.0) for binned in context.binned)
        if not restarts:
            return context.unknown(Gap.NO_TRAFFIC, "no start was seen")
        seen = "one restart was seen" if restarts == 1 else f"{restarts:.0f} restarts were seen"
        return context.unknown(Gap.NOT_EXPOSED, f"{seen}, the page does not expose when the engine was ready")
    is_whole, status, details = first.timing is Timing.POD, Status.OK, [f"timed {FROM_TO[first.timing]}"]
    if late:
        status, is_whole = Status.WARNING, first.least > allowed
    if first.timing is not Timing.POD:
        details.append("the plan is for the whole start" + ("" if late else ", which was not timed"))
    observed = Reading(value=first.seconds, low=first.least, high=None, n=first.n)
    expected = Reading(value=planned, low=0.0, high=planned, n=1.0)
    return context.verdict(status, Certainty.of(is_whole), observed, expected, first.sentence, details=details)


def _find_slowest_start(
    context: RuleContext, timing: Timing, planned: float | None, allowed: float
) -> StartTimes | None:
    """Return the slowest start of the window with this timing."""
    starts: list[tuple[float, float, str]] = []
    since = context.now - context.rule.window_seconds
    if timing is Timing.POD:
        whole = [start for start in context.starts if start.timing is timing and start.t > since]
        starts = [(start.lead_seconds or 0.0, 1.0, start.replica) for start in whole]
    for binned in context.binned if timing is Timing.PROCESS else ():
        count, seconds = (binned.window.counters.get(name, 0.0) for name in ("cold_starts", "cold_start_seconds"))
        if count:
            starts.append((seconds / count, count, binned.replica or context.tier.name))
    if not starts:
        return None
    slowest, _, replica = max(starts, key=itemgetter(0))
    n = math.fsum(count for _, count, _ in starts)
    late = math.fsum(count for seconds, count, _ in starts if seconds > allowed)
    took, plan, counted = number(slowest, "seconds"), number(planned or 0.0, "seconds"), format_count(int(n), "start")
    sentence = f"{counted} took {'at most ' if n > 1 else ''}{took}; {plan} are planned"
    if late:
        sentence = f"{late:.0f} of {counted} took longer than the planned {plan}; {replica} {took}"
    return StartTimes(timing, slowest, slowest, n, sentence)


def _describe_quantiles(known: StartQuantiles, planned: float | None) -> StartTimes:
    """Return the P95 of all known starts with this timing."""
    took, plan = spread(known.proven_seconds, known.p95_seconds, "seconds"), number(planned or 0.0, "seconds")
    sentence = f"Cold start P95 is {took} over {known.count} starts"
    if not known.has_p95:
        which = "The only known cold start" if known.count == 1 else f"The slowest of {known.count} cold starts"
        sentence = f"{which} took {took}"
    text = f"{sentence}; {plan} are planned"
    return StartTimes(known.timing, known.p95_seconds, known.proven_seconds, float(known.count), text)


def judge_flapping(context: RuleContext) -> RuleResult:
    """Find replicas that stopped within their own cold start, or again and again, in the last hour."""
    if not any(binned.replica for binned in context.binned):
        return context.unknown(Gap.NOT_EXPOSED, "the tier is read as sums, without the starts of its replicas")
    short, most = find_short_lives(context), context.limit("times")
    status, sentence, details = Status.OK, "No replica stopped within its own cold start", ("", "")
    if short:
        status = Status.WARNING if len(short) >= most else Status.OK
        sentence = f"Replicas stopped soon after their start {format_count(len(short), 'time')} in an hour"
        ran, shortest, took = min(short)
        names = join_names(sorted({replica for _, replica, _ in short}))
        details = names, f"{shortest} ran {number(ran, 'seconds')} after a start of {number(took, 'seconds')}"
    if short and context.tier.plan is not None:
        price = price_of(context.tier.plan)
        hours = sum(took for *_, took in short) * price.gpus_per_replica / HOUR_SECONDS
        money = f", {hours * price.gpu_hour_price:,.2f} {price.currency}" if price.gpu_hour_price is not None else ""
        sentence += f"; their starts took {hours:.2g} GPU-hours{money}"
    observed, expected = exact_reading(len(short), len(short)), range_reading(0.0, most - 1, len(short))
    return context.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=details)


def find_short_lives(context: RuleContext) -> list[tuple[float, str, float]]:
    """Return seconds run, replica and start seconds, of starts that took longer than the run or were often repeated."""
    begun = [start.replica for start in context.starts if start.t > context.now - HOUR_SECONDS]
    replicas = hold(binned for binned in context.binned if binned.replica).by_replica
    last = {name: max(binned.window.end for binned in group) for name, group in replicas.items()}
    newest = max(last.values(), default=0.0)
    planned = context.tier.plan.cold_start_seconds if context.tier.plan else None
    later: dict[str, ReplicaStart] = {}
    short_lives = []
    for start in sorted(context.starts, key=lambda replica_start: replica_start.t, reverse=True):
        after = later.get(start.replica)
        later[start.replica] = start
        seen_until = max(last.get(start.replica, 0.0), start.seen_at)
        stopped = seen_until if newest - seen_until > SILENT_SECONDS else None
        if after is not None:
            stopped = after.alive_at
        if stopped is None or stopped < context.now - HOUR_SECONDS or not start.has_observed_begin:
            continue
        took, ran = start.lead_seconds or 0.0, max(0.0, stopped - start.t)
        if start.timing is not Timing.POD:
            # Timed in part: it took at least as long as is planned.
            took = max(took, planned or 0.0)
        if ran < took or (ran < HOUR_SECONDS and begun.count(start.replica) > context.limit("times")):
            short_lives.append((ran, start.replica, took))
    return short_lives
