"""Configuration and starts against the plan: number formats that the GPU has no hardware path for, what was benchmarked,
places for LoRA adapters, cold starts (guide 8.2, 9.2, 9.3, 9.5).

Precision needs no telemetry: no metric shows that a format runs converted. No engine exposes hits, loads or evictions of
adapters, only held-back requests, and lists of running and waiting adapters. Loads without a wait leave no trace, so the
result is unknown, never ok. A planned cold start is the time from the request for a replica to Ready. A start that was timed
in part is a lower bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.methods.evidence import capitalize, certain_if, exact_reading, join_names, range_reading
from rules.plan.gpus import UNPACKED, find_product, needed_format
from rules.plan.money import price_of
from rules.replicas.starts import FROM_TO, ReplicaStart, StartQuantiles, Timing, quantiles_by_timing
from rules.telemetry.reading_methods import mean_level, replica_rate
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.snapshots import ENGINE_VERSION, RELEASE, is_same_release, release_numbers
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS, Window
from rules.telemetry.wording import format_count, number
from rules.verdicts.context import RuleContext, is_persistent
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import RuleResult, Status


def judge_precision(context: RuleContext) -> RuleResult:
    """Compare the formats of weights and KV cache in the plan with those that the planned GPU computes.

    From the plan and the table of GPUs. Certain for weights that can only be a mistake; a small KV cache saves memory all the
    same.
    """
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
    first, *details = (f"no hardware path for {part} in {written[part]}; {CONVERTED[part]}" for part in wrong)
    if gpu.capability is not None:
        details.append(f"compute capability {gpu.capability:.1f}, {wanted:g} or more is needed")
    certainty = certain_if("weights" in wrong and wrong["weights"] not in UNPACKED)
    sentence = f"{plan.gpu.product} has {first}"
    return context.verdict(Status.WARNING, certainty, observed, expected, sentence, details=details)


CONVERTED = {
    "weights": "they run converted, without the planned speed-up",
    "KV cache": "memory is saved, time is not",
}
"""What a format without a hardware path does."""


MEASURED_FACTS = (
    ("engine_version", ENGINE_VERSION, "release"),
    ("max_num_seqs", "max_num_seqs", "max-num-seqs"),
    ("tensor_parallel", "tensor_parallel_size", "tensor parallel degree"),
)
"""Keys of `curve.measured` that pages tell, the fact of the page, and words."""


def judge_benchmark_stale(context: RuleContext) -> RuleResult:
    """Compare what the replicas run with what was benchmarked: release, batch limit and parallelism of their pages.

    Certain where a page tells them. Names on a page prove a release only by excluding it.
    """
    plan = context.tier.plan
    measured = plan.curve.measured if plan and plan.curve else None
    wanted = {key: str(value) for key, _, _ in MEASURED_FACTS if measured and (value := getattr(measured, key))}
    if not wanted:
        text = "the plan does not tell which release was benchmarked (curve.measured.engine_version)"
        return context.unknown(Gap.NOT_IN_PLAN, text)
    pages = [replica.track.last.facts for replica in context.replicas if replica.track.last is not None]
    if not pages:
        return context.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    compared = [_compare_facts(wanted, facts) for facts in pages]
    known = [text for text in compared if text is not None]
    texts = [text for text in known if text]
    benchmarked = ", ".join(f"{words} {wanted[key]}" for key, _, words in MEASURED_FACTS if key in wanted)
    if not known:
        return context.unknown(Gap.NOT_EXPOSED, f"{benchmarked} was benchmarked; the pages do not tell what runs")
    observed, expected = exact_reading(float(len(texts)), float(len(known))), exact_reading(0.0, 1.0)
    count = len(texts or known)
    who = f"All {count} replicas run" if count == len(pages) else f"{count} of {len(pages)} replicas run"
    who = "The replica runs" if len(pages) == 1 else who
    if not texts:
        sentence, certainty = f"{who} what was benchmarked: {benchmarked}", certain_if(len(known) == len(pages))
        return context.verdict(Status.OK, certainty, observed, expected, sentence)
    what = " and ".join(f"{text} ({texts.count(text)})" for text in dict.fromkeys(texts))
    what = what if len(set(texts)) > 1 else texts[0]
    when = f"benchmarked on {measured.measured_on}" if measured and measured.measured_on else ""
    status = Status.OK if len(texts) < context.limit("replicas") else Status.WARNING
    sentence = f"{who} {what}; {benchmarked} was benchmarked"
    return context.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=(when,))


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
    for word, end in re.findall(r"(after|before) v?(\d+(?:\.\d+)*)", allowed):
        newer = release_numbers(match[1]) > release_numbers(end)
        if newer is (word == "before") or release_numbers(match[1]) == release_numbers(end):
            return True
    return False


LOADS = ("kv_transfer_seconds", "external_prefix_queried_tokens")
"""Families of a KV connector. With it requests may be held back for KV blocks too."""

READ = frozenset({"adapters_running", "adapters_waiting", "requests_waiting_deferred", "requests_finished", *LOADS})
"""Families of the sum."""

UNCOUNTED = "how often adapters are loaded is not exposed"
"""Detail of every verdict."""


@dataclass(frozen=True, slots=True)
class AdapterWait:
    """Seconds held back per finished request (Little's law), None if not exposed, and adapters of a replica.

    `most` is the maximum of running adapters, `waiting` the mean of adapters with waiting requests.
    """

    seconds: float | None
    most: float
    waiting: float
    finished: float


def judge_adapters(context: RuleContext) -> RuleResult:
    """Compare held-back requests with the TTFT objective, else running adapters with those that fit.

    Certain by held-back requests without a KV connector. Likely by the lists: vLLM may name an adapter in both of them.
    """
    total = hold(context.binned).sum_families(READ)
    served = mean_level(total, "adapters_running")
    if isinstance(served, Missing):
        return context.unknown(served.gap, f"no LoRA adapters are exposed: {UNCOUNTED}")
    whole = _measure(total)
    if whole is None or not served.high:
        return context.unknown(Gap.NO_TRAFFIC, "no request with a LoRA adapter was seen")
    if whole.finished < context.limit("minimum_requests"):
        return context.too_few_requests(whole.finished, context.limit("minimum_requests"))
    allowed = context.limit("held_share") * (context.tier.basis.ttft_slo_seconds or context.limit("ttft_slo_seconds"))
    fit = context.tier.plan.lora.max_adapters if context.tier.plan and context.tier.plan.lora else None

    def is_held_back(part: AdapterWait) -> bool:
        return part.seconds is not None and part.seconds > allowed

    def is_crowded(part: AdapterWait) -> bool:
        return fit is not None and part.most >= fit and part.waiting > context.limit("waiting")

    parts = (context.last_quarter(context.binned), *context.periods(context.binned))
    last, *each = (_measure(hold(part).sum_families(READ)) if part else None for part in parts)
    observed, expected = exact_reading(whole.seconds, whole.finished), range_reading(0.0, allowed, whole.finished)
    ran, waited = format_count(int(whole.most), "adapter"), number(whole.seconds or 0.0, "seconds")
    healthy = f"up to {number(allowed, 'seconds')} is healthy"
    fine = "no more adapters ran than fit" if whole.seconds is None else f"requests waited {waited} each, {healthy}"
    status, certain, details = Status.WARNING, False, [UNCOUNTED]
    if is_held_back(whole) and is_persistent(last, each, is_held_back):
        loads = (total.counters.get(name) or any(p.n for p in total.histograms.get(name, ())) for name in LOADS)
        certain = not any(loads)
        slots = "adapter slots" if certain else "adapter slots or KV loads"
        sentence = f"Requests wait {waited} for {slots} on average; {healthy}"
        details.insert(0, f"at most {ran} ran at once{f', {fit} fit' if fit is not None else ''}")
    elif is_crowded(whole) and is_persistent(last, each, is_crowded):
        waiting = f"requests of {number(whole.waiting, '')} adapters wait on average"
        sentence, observed = f"{ran} ran at once where {fit} fit; {waiting}", range_reading(0.0, None, whole.finished)
        expected = Reading(value=0.0, low=0.0, high=None, n=whole.finished)
    elif any(part is not None and (is_held_back(part) or is_crowded(part)) for part in each):
        # Unknown would not end a finding.
        status, details = Status.OK, ["not lastingly, or no longer", UNCOUNTED]
        sentence = capitalize(fine) if whole.seconds is not None else "Requests of adapters waited"
    else:
        return context.unknown(Gap.NOT_EXPOSED, f"{fine}; {UNCOUNTED}")
    return context.verdict(status, certain_if(certain), observed, expected, sentence, details=details)


def _measure(total: Window) -> AdapterWait | None:
    """Return the mean wait of a finished request by Little's law: mean held / finished per second.

    Return None where running adapters are not exposed.
    """
    held, rps = mean_level(total, "requests_waiting_deferred"), replica_rate(total, "requests_finished")
    served, waiting = mean_level(total, "adapters_running"), mean_level(total, "adapters_waiting")
    if isinstance(served, Missing):
        return None
    seconds = (held.value or 0.0) / rps if isinstance(held, Reading) and rps else None
    crowd = waiting.value or 0.0 if isinstance(waiting, Reading) else 0.0
    return AdapterWait(seconds, served.high or 0.0, crowd, total.counters.get("requests_finished", 0.0))


def judge_cold_start(context: RuleContext) -> RuleResult:
    """Find starts above the planned time: each start of the window, then the P95 of all known starts.

    A start that was timed in part is a lower bound: proof above the plan, and likely at most below it.
    """
    planned = context.tier.plan.cold_start_seconds if context.tier.plan else None
    known = quantiles_by_timing(context.starts)
    recent = {timing: starts for timing in Timing if (starts := _find_starts(context, timing))}
    if planned is None:
        measured = [(quantiles.timing, quantiles.p95_seconds) for quantiles in known]
        measured += [(timing, max(seconds for _, seconds, _ in starts)) for timing, starts in recent.items()]
        text = "the plan has no cold_start_seconds"
        for timing, seconds in measured[:1]:
            text += f"; {number(seconds, 'seconds')} were measured {FROM_TO[timing]}"
        return context.unknown(Gap.NOT_IN_PLAN, text)
    allowed = planned * context.limit("factor")
    for timing, starts in recent.items():
        if any(seconds > allowed for _, seconds, _ in starts):
            return _judge_starts(context, starts, timing, planned)
    late = [quantiles for quantiles in known if quantiles.p95_seconds > allowed]
    if late:
        worst = max(late, key=lambda quantiles: (quantiles.proven_seconds > allowed, quantiles.p95_seconds))
        return _judge_quantiles(context, worst, planned)
    if recent and (Timing.POD in recent or all(quantiles.timing is not Timing.POD for quantiles in known)):
        timing, starts = next(iter(recent.items()))
        return _judge_starts(context, starts, timing, planned)
    if known:
        return _judge_quantiles(context, known[0], planned)
    restarts = math.fsum(binned.window.counters.get("restarts", 0.0) for binned in context.binned)
    if restarts:
        seen = "one restart was seen" if restarts == 1 else f"{restarts:.0f} restarts were seen"
        return context.unknown(Gap.NOT_EXPOSED, f"{seen}, the page does not expose when the engine was ready")
    return context.unknown(Gap.NO_TRAFFIC, "no start was seen")


Start = tuple[str | None, float, float]
"""Replica, its seconds, and the number of starts that they are the mean of."""


def _find_starts(context: RuleContext, timing: Timing) -> list[Start]:
    """Return the starts of the window with this timing. Windows count those from process start to ready."""
    if timing is not Timing.PROCESS:
        since = context.now - context.rule.window_seconds
        whole = [start for start in context.starts if start.timing is timing and start.t > since]
        return [(start.replica, start.lead_seconds or 0.0, 1.0) for start in whole]
    starts: list[Start] = []
    for binned in context.binned:
        count, seconds = (binned.window.counters.get(name, 0.0) for name in ("cold_starts", "cold_start_seconds"))
        starts += [(binned.replica, seconds / count, count)] if count else []
    return starts


def _judge_starts(context: RuleContext, starts: Sequence[Start], timing: Timing, planned: float) -> RuleResult:
    """Compare the slowest start of the window."""
    replica, slowest, _ = max(starts, key=lambda start: start[1])
    count = math.fsum(count for *_, count in starts)
    late = math.fsum(count for _, seconds, count in starts if seconds > planned * context.limit("factor"))
    took, plan, counted = number(slowest, "seconds"), number(planned, "seconds"), format_count(int(count), "start")
    sentence = f"{counted} took {'at most ' if count > 1 else ''}{took}; {plan} are planned"
    if late:
        sentence = f"{late:.0f} of {counted} took longer than the planned {plan}; {replica or context.tier.name} {took}"
    observed = Reading(value=slowest, low=slowest, high=None, n=count)
    return _compare_with_plan(context, timing, planned, observed, sentence)


def _judge_quantiles(context: RuleContext, known: StartQuantiles, planned: float) -> RuleResult:
    """Compare the P95 of all known starts with this timing."""
    took = number(known.p95_seconds, "seconds")
    sentence = f"Cold start P95 is {took} over {known.count} starts"
    if not known.has_p95:
        which = "The only known cold start" if known.count == 1 else f"The slowest of {known.count} cold starts"
        sentence = f"{which} took {took}"
    observed = Reading(value=known.p95_seconds, low=known.proven_seconds, high=None, n=float(known.count))
    sentence = f"{sentence}; {number(planned, 'seconds')} are planned"
    return _compare_with_plan(context, known.timing, planned, observed, sentence)


def _compare_with_plan(
    context: RuleContext, timing: Timing, planned: float, observed: Reading, sentence: str
) -> RuleResult:
    """Return a warning for a start above the plan, certain by its lower bound. Ok is certain of a whole start."""
    allowed, is_whole = planned * context.limit("factor"), timing is Timing.POD
    is_late = (observed.value or 0.0) > allowed
    certainty = certain_if((observed.low or 0.0) > allowed if is_late else is_whole)
    part = "" if is_whole else "the plan is for the whole start" + ("" if is_late else ", which was not timed")
    expected, details = Reading(value=planned, low=0.0, high=planned, n=1.0), (f"timed {FROM_TO[timing]}", part)
    status = Status.WARNING if is_late else Status.OK
    return context.verdict(status, certainty, observed, expected, sentence, details=details)


SILENT_SECONDS = 2 * MINUTE_SECONDS
"""Seconds without a page, while others of the tier answer, after which a replica was stopped."""


ShortLife = tuple[float, str, float]
"""Seconds that a replica ran after a start, its name, and the seconds of that start."""


def judge_flapping(context: RuleContext) -> RuleResult:
    """Find replicas that stopped within their own cold start, and what those starts cost.

    From starts and last pages of the last hour. Always certain: a start without an observed begin does not count.
    """
    if not any(binned.replica for binned in context.binned):
        return context.unknown(Gap.NOT_EXPOSED, "the tier is read as sums, without the starts of its replicas")
    short, most = find_short_lives(context), context.limit("times")
    observed, expected = exact_reading(len(short), len(short)), range_reading(0.0, most - 1, len(short))
    if not short:
        sentence = "No replica stopped within its own cold start"
        return context.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence)
    sentence = f"Replicas stopped within their own cold start {format_count(len(short), 'time')} in an hour"
    if context.tier.plan is not None:
        price = price_of(context.tier.plan)
        hours = sum(took for *_, took in short) * price.gpus_per_replica / HOUR_SECONDS
        money = f", {hours * price.gpu_hour_price:,.2f} {price.currency}" if price.gpu_hour_price is not None else ""
        sentence += f"; their starts took {hours:.2g} GPU-hours{money}"
    ran, shortest, took = min(short)
    details = (
        join_names(sorted({replica for _, replica, _ in short})),
        f"{shortest} ran {number(ran, 'seconds')} after a start of {number(took, 'seconds')}",
    )
    status = Status.WARNING if len(short) >= most else Status.OK
    return context.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=details)


def find_short_lives(context: RuleContext) -> list[ShortLife]:
    """Return the starts of the last hour whose replica stopped, or started again, before it ran for as long."""
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
        short_lives += [(ran, start.replica, took)] if ran < took else []
    return short_lives
