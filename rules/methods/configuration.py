"""Configuration against the plan: number formats that the GPU has no hardware path for, cold starts, and what was
benchmarked (guide 8.2, 9.2, 9.5).

Precision needs no telemetry: no metric shows that a format runs converted. A planned cold start is the time from the
request for a replica to Ready. A start that was timed in part is a lower bound: proof above the plan, none below it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from rules.confidence import Certainty
from rules.methods.evidence import certain_if, exact_reading, range_reading
from rules.plan.gpus import UNPACKED, find_product, needed_format
from rules.replicas.start_quantiles import FROM_TO, StartQuantiles, quantiles_by_timing
from rules.replicas.starts import Timing
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.snapshots import ENGINE_VERSION, RELEASE, is_same_release, release_numbers
from rules.telemetry.wording import format_count, number
from rules.verdicts.context import RuleContext
from rules.verdicts.verdict import RuleResult, Status


def judge_precision(case: RuleContext) -> RuleResult:
    """Compare the formats of weights and KV cache in the plan with those that the planned GPU computes.

    From the plan and the table of GPUs. Certain for weights that can only be a mistake; a small KV cache saves memory all the
    same.
    """
    plan = case.context.plan
    if plan is None or plan.precision is None or not (plan.precision.weights or plan.precision.kv):
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no precision")
    written = {"weights": plan.precision.weights, "KV cache": plan.precision.kv}
    needs = {part: needed_format(format) for part, format in written.items() if format}
    gpu = find_product(plan.gpu.product)
    if gpu is None:
        text = f"{plan.gpu.product} is not in the table of GPUs: what it computes in hardware is not known"
        return case.unknown(Gap.NOT_IN_PLAN, text)
    wrong = {part: need for part, need in needs.items() if need and not gpu.computes(need, case.limit(need))}
    if None in needs.values() and not wrong:
        strange = (str(written[part]) for part, need in needs.items() if need is None)
        return case.unknown(Gap.NOT_IN_PLAN, f"{' and '.join(strange)} is no format whose needs are known")
    wanted = max((case.limit(need) for need in needs.values() if need), default=0.0)
    observed, expected = exact_reading(gpu.capability, 1.0), range_reading(wanted, None, 1.0)
    if not wrong:
        formats = ", ".join(f"{part} in {written[part]}" for part in needs)
        sentence = f"{plan.gpu.product} computes what is planned: {formats}"
        return case.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence)
    first, *details = (f"no hardware path for {part} in {written[part]}; {CONVERTED[part]}" for part in wrong)
    if gpu.capability is not None:
        details.append(f"compute capability {gpu.capability:.1f}, {wanted:g} or more is needed")
    certainty = certain_if("weights" in wrong and wrong["weights"] not in UNPACKED)
    sentence = f"{plan.gpu.product} has {first}"
    return case.verdict(Status.WARNING, certainty, observed, expected, sentence, details=details)


CONVERTED = {
    "weights": "they run converted, without the planned speed-up",
    "KV cache": "memory is saved, time is not",
}
"""What a format without a hardware path does."""


def judge_cold_start(case: RuleContext) -> RuleResult:
    """Find starts above the planned time: each start of the window, then the P95 of all known starts.

    A start that was timed in part is a lower bound: proof above the plan, and likely at most below it.
    """
    planned = case.context.plan.cold_start_seconds if case.context.plan else None
    known = quantiles_by_timing(case.starts)
    recent = {timing: starts for timing in Timing if (starts := _find_starts(case, timing))}
    if planned is None:
        measured = [(one.p95_seconds, one.timing) for one in known]
        measured = measured or [(max(seconds for _, seconds, _ in starts), timing) for timing, starts in recent.items()]
        seconds, timing = max(measured, key=lambda pair: (pair[1] is Timing.POD, pair[0]), default=(0.0, None))
        told = f"; {number(seconds, 'seconds')} were measured {FROM_TO[timing]}" if timing else ""
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan has no cold_start_seconds{told}")
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    allowed = planned * case.limit("factor")
    for timing, starts in recent.items():
        if any(seconds > allowed for _, seconds, _ in starts):
            return _judge_starts(case, starts, timing, planned)
    late = [one for one in known if one.p95_seconds > allowed]
    if late:
        worst = max(late, key=lambda one: (one.proven_seconds > allowed, one.p95_seconds))
        return _judge_quantiles(case, worst, planned)
    if recent and (Timing.POD in recent or all(one.timing is not Timing.POD for one in known)):
        timing, starts = next(iter(recent.items()))
        return _judge_starts(case, starts, timing, planned)
    if known:
        return _judge_quantiles(case, known[0], planned)
    restarts = math.fsum(one.window.counters.get("restarts", 0.0) for one in case.binned)
    if restarts:
        seen = "one restart was seen" if restarts == 1 else f"{restarts:.0f} restarts were seen"
        return case.unknown(Gap.NOT_EXPOSED, f"{seen}, the page does not expose when the engine was ready")
    return case.unknown(Gap.NO_TRAFFIC, "no start was seen")


Start = tuple[str | None, float, float]
"""Replica, its seconds, and the number of starts that they are the mean of."""


def _find_starts(case: RuleContext, timing: Timing) -> list[Start]:
    """Return the starts of the window with this timing. Windows count those from process start to ready."""
    if timing is not Timing.PROCESS:
        since = case.now - case.rule.window_seconds
        whole = [start for start in case.starts if start.timing is timing and start.t > since]
        return [(start.replica, start.lead_seconds or 0.0, 1.0) for start in whole]
    counted = [(one.replica, one.window.counters) for one in case.binned if one.window.counters.get("cold_starts")]
    return [
        (replica, counters.get("cold_start_seconds", 0.0) / counters["cold_starts"], counters["cold_starts"])
        for replica, counters in counted
    ]


def _judge_starts(case: RuleContext, starts: Sequence[Start], timing: Timing, planned: float) -> RuleResult:
    """Compare the slowest start of the window."""
    allowed, count = planned * case.limit("factor"), math.fsum(count for *_, count in starts)
    replica, slowest, _ = max(starts, key=lambda start: start[1])
    late = math.fsum(count for _, seconds, count in starts if seconds > allowed)
    observed = Reading(value=slowest, low=slowest, high=None, n=count)
    took, plan, counted = number(slowest, "seconds"), number(planned, "seconds"), format_count(int(count), "start")
    if late:
        who = replica or case.context.tier
        sentence = f"{late:.0f} of {counted} took longer than the planned {plan}; {who} {took}"
    else:
        sentence = f"{counted} took {'at most ' if count > 1 else ''}{took}; {plan} are planned"
    return _compare_with_plan(case, timing, planned, observed, sentence, is_late=late > 0, is_proven=late > 0)


def _judge_quantiles(case: RuleContext, known: StartQuantiles, planned: float) -> RuleResult:
    """Compare the P95 of all known starts with this timing."""
    allowed, slow, proven = planned * case.limit("factor"), known.p95_seconds, known.proven_seconds
    observed, took = Reading(value=slow, low=proven, high=None, n=float(known.count)), number(slow, "seconds")
    if known.count == 1:
        sentence = f"The only known cold start took {took}"
    elif not known.has_p95:
        sentence = f"The slowest of {known.count} cold starts took {took}"
    else:
        sentence = f"Cold start P95 is {took} over {known.count} starts"
    sentence = f"{sentence}; {number(planned, 'seconds')} are planned"
    is_late = slow > allowed
    return _compare_with_plan(
        case, known.timing, planned, observed, sentence, is_late=is_late, is_proven=proven > allowed
    )


def _compare_with_plan(
    case: RuleContext,
    timing: Timing,
    planned: float,
    observed: Reading,
    sentence: str,
    *,
    is_late: bool,
    is_proven: bool,
) -> RuleResult:
    is_whole = timing is Timing.POD
    part = "" if is_whole else "the plan is for the whole start" + ("" if is_late else ", which was not timed")
    expected = Reading(value=planned, low=0.0, high=planned, n=1.0)
    certainty = certain_if(is_proven if is_late else is_whole)
    status = Status.WARNING if is_late else Status.OK
    details = (f"timed {FROM_TO[timing]}", part)
    return case.verdict(status, certainty, observed, expected, sentence, details=details)


MEASURED_FACTS = (
    ("engine_version", ENGINE_VERSION, "release"),
    ("max_num_seqs", "max_num_seqs", "max-num-seqs"),
    ("tensor_parallel", "tensor_parallel_size", "tensor parallel degree"),
)
"""Keys of `curve.measured` that pages tell, the fact of the page, and words."""


def judge_benchmark_stale(case: RuleContext) -> RuleResult:
    """Compare what the replicas run with what was benchmarked: release, batch limit and parallelism of their pages.

    Certain where a page tells them. Names on a page prove a release only by excluding it.
    """
    plan = case.context.plan
    measured = plan.curve.measured if plan and plan.curve else None
    wanted = {key: str(value) for key, _, _ in MEASURED_FACTS if measured and (value := getattr(measured, key))}
    if not wanted:
        text = "the plan does not tell which release was benchmarked (curve.measured.engine_version)"
        return case.unknown(Gap.NOT_IN_PLAN, text)
    pages = [one.track.last.facts for one in case.replicas if one.track.last is not None]
    if not pages:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    compared = [_compare_facts(wanted, facts) for facts in pages]
    known = [text for text in compared if text is not None]
    other = [text for text in known if text]
    benchmarked = ", ".join(f"{words} {wanted[key]}" for key, _, words in MEASURED_FACTS if key in wanted)
    if not known:
        return case.unknown(Gap.NOT_EXPOSED, f"{benchmarked} was benchmarked; the pages do not tell what runs")
    observed, expected = exact_reading(float(len(other)), float(len(known))), exact_reading(0.0, 1.0)
    count = len(other or known)
    who = f"All {count} replicas run" if count == len(pages) else f"{count} of {len(pages)} replicas run"
    who = "The replica runs" if len(pages) == 1 else who
    if not other:
        sentence, certainty = f"{who} what was benchmarked: {benchmarked}", certain_if(len(known) == len(pages))
        return case.verdict(Status.OK, certainty, observed, expected, sentence)
    what = " and ".join(f"{text} ({other.count(text)})" for text in dict.fromkeys(other))
    what = what if len(set(other)) > 1 else other[0]
    when = f"benchmarked on {measured.measured_on}" if measured and measured.measured_on else ""
    status = Status.OK if len(other) < case.limit("replicas") else Status.WARNING
    sentence = f"{who} {what}; {benchmarked} was benchmarked"
    return case.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=(when,))


def _compare_facts(wanted: Mapping[str, str], facts: Mapping[str, str]) -> str | None:
    """Return what a page tells otherwise than the benchmark: "" for nothing, None if it tells nothing."""
    pairs = [(words, facts.get(fact), wanted[key]) for key, fact, words in MEASURED_FACTS if key in wanted]
    other = [f"{words} {runs}" for words, runs, was in pairs if runs and not is_same_release(runs, was)]
    allowed = facts.get("engine_versions", "")
    if not facts.get(ENGINE_VERSION) and is_excluded(allowed, wanted.get("engine_version", "")):
        return ", ".join([f"a release {allowed}", *other])
    return ", ".join(other) if any(runs for _, runs, _ in pairs) else None


def is_excluded(allowed: str, release: str) -> bool:
    """Return whether words such as "after 0.29.0 and before 0.33.0" exclude a release."""
    found = RELEASE.match(release)
    if found is None:
        return False
    for word, end in re.findall(r"(after|before) v?(\d+(?:\.\d+)*)", allowed):
        newer = release_numbers(found[1]) > release_numbers(end)
        if newer is (word == "before") or release_numbers(found[1]) == release_numbers(end):
            return True
    return False
