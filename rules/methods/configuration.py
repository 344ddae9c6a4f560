"""Configuration against the plan: number formats that the GPU has no hardware path for, cold starts, and what was
benchmarked (guide 8.2, 9.2, 9.5).

Precision needs no telemetry: no metric shows that a format runs converted. A planned cold start is the time from the
request for a replica to Ready. A start that was timed in part is a lower bound: proof above the plan, none below it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.methods.evidence import certain_if, exact_reading, range_reading
from rules.plan.gpus import UNPACKED, Product, find_product, needed_format
from rules.replicas.start_quantiles import FROM_TO, StartQuantiles, quantiles_by_timing
from rules.replicas.starts import Timing
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.snapshots import ENGINE_VERSION, RELEASE, is_same_release, release_numbers
from rules.telemetry.wording import number
from rules.verdicts.context import RuleContext
from rules.verdicts.verdict import RuleResult, Status


def judge_precision(case: RuleContext) -> RuleResult:
    """Compare the formats of weights and KV cache in the plan with those that the planned GPU computes."""
    plan = case.context.plan
    if plan is None or plan.precision is None or not (plan.precision.weights or plan.precision.kv):
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no precision")
    written = {"weights": plan.precision.weights, "KV cache": plan.precision.kv}
    parts = {part: format for part, format in written.items() if format}
    strange = [format for format in parts.values() if needed_format(format) is None]
    gpu = find_product(plan.gpu.product)
    if gpu is None:
        text = f"{plan.gpu.product} is not in the table of GPUs: what it computes in hardware is not known"
        return case.unknown(Gap.NOT_IN_PLAN, text)
    found = [one for part, format in parts.items() if (one := _find_mismatch(case, gpu, part, format)) is not None]
    if strange and not found:
        return case.unknown(Gap.NOT_IN_PLAN, f"{' and '.join(strange)} is no format whose needs are known")
    wanted = max(
        (case.limit(needs) if (needs := needed_format(format)) else 0.0 for format in parts.values()), default=0.0
    )
    observed, expected = exact_reading(gpu.capability, 1.0), range_reading(wanted, None, 1.0)
    if found:
        certainty = certain_if(any(sure for _, sure in found))
        sentence = f"{plan.gpu.product} has {found[0][0]}"
        details = [text for text, _ in found[1:]]
        if gpu.capability is not None:
            details.append(f"compute capability {gpu.capability:.1f}, {wanted:g} or more is needed")
        return case.verdict(Status.WARNING, certainty, observed, expected, sentence, details=details)
    formats = ", ".join(f"{part} in {format}" for part, format in parts.items())
    sentence = f"{plan.gpu.product} computes what is planned: {formats}"
    return case.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence)


def _find_mismatch(case: RuleContext, gpu: Product, part: str, format: str) -> tuple[str, bool] | None:
    """Return a part in a format that the GPU does not compute, in words, and whether it can only be a mistake."""
    needs = needed_format(format)
    if not needs or gpu.computes(needs, case.limit(needs)):
        return None
    text = f"no hardware path for {part} in {format}"
    if part == "KV cache":
        return f"{text}; memory is saved, time is not", False
    return f"{text}; they run converted, without the planned speed-up", needs not in UNPACKED


@dataclass(frozen=True, slots=True, kw_only=True)
class StartQuantile:
    """Start of a replica, or the mean of its starts within one minute: minimum seconds, and number of starts."""

    replica: str | None
    seconds: float
    count: float


def judge_cold_start(case: RuleContext) -> RuleResult:
    """Find starts above the planned time: each start of the window, then the P95 of all known starts."""
    planned = case.context.plan.cold_start_seconds if case.context.plan else None
    if planned is None:
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan has no cold_start_seconds{_describe_measured(case)}")
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    allowed = planned * case.limit("factor")
    recent = {timing: found for timing in Timing if (found := _find_starts(case, timing))}
    for timing, starts in recent.items():
        if any(one.seconds > allowed for one in starts):
            return _judge_starts(case, starts, timing, planned)
    known = {one.timing: one for one in quantiles_by_timing(case.starts)}
    late = [one for one in known.values() if one.p95_seconds > allowed]
    if late:
        worst = max(late, key=lambda one: (one.proven_seconds > allowed, one.p95_seconds))
        return _judge_quantiles(case, worst, planned)
    if recent and (Timing.POD in recent or Timing.POD not in known):
        timing, starts = next(iter(recent.items()))
        return _judge_starts(case, starts, timing, planned)
    if known:
        return _judge_quantiles(case, next(iter(known.values())), planned)
    restarts = math.fsum(s.window.counters.get("restarts", 0.0) for s in case.binned)
    if restarts:
        seen = "one restart was seen" if restarts == 1 else f"{restarts:.0f} restarts were seen"
        return case.unknown(Gap.NOT_EXPOSED, f"{seen}, the page does not expose when the engine was ready")
    return case.unknown(Gap.NO_TRAFFIC, "no start was seen")


def _judge_quantiles(case: RuleContext, known: StartQuantiles, planned: float) -> RuleResult:
    """Compare the P95 of all known starts with this timing."""
    allowed, slow, proven = planned * case.limit("factor"), known.p95_seconds, known.proven_seconds
    observed = Reading(value=slow, low=proven, high=None, n=float(known.count))
    took = number(slow, "seconds")
    if known.count == 1:
        sentence = f"The only known cold start took {took}"
    elif not known.has_p95:
        sentence = f"The slowest of {known.count} cold starts took {took}"
    else:
        sentence = f"Cold start P95 is {took} over {known.count} starts"
    is_fine = slow <= allowed
    sentence = f"{sentence}; {number(planned, 'seconds')} are planned"
    details = (f"timed {FROM_TO[known.timing]}", _describe_part(known.timing, is_fine=is_fine))
    status = Status.OK if is_fine else Status.WARNING
    # A part of a start that is shorter than the plan proves nothing.
    certainty = certain_if(known.timing is Timing.POD if is_fine else proven > allowed)
    return case.verdict(status, certainty, observed, _expect_planned(planned), sentence, details=details)


def _expect_planned(planned: float) -> Reading:
    return Reading(value=planned, low=0.0, high=planned, n=1.0)


def _describe_part(timing: Timing, *, is_fine: bool) -> str:
    """Return what the plan covers where only a part of a start was timed."""
    if timing is Timing.POD:
        return ""
    return "the plan is for the whole start, which was not timed" if is_fine else "the plan is for the whole start"


def _find_starts(case: RuleContext, timing: Timing) -> tuple[StartQuantile, ...]:
    """Return the starts of the window with this timing. Windows count those from process start to ready."""
    if timing is not Timing.PROCESS:
        since = case.now - case.rule.window_seconds
        return tuple(
            StartQuantile(replica=start.replica, seconds=start.lead_seconds or 0.0, count=1.0)
            for start in case.starts
            if start.timing is timing and start.t > since
        )
    found = [(s.replica, s.window.counters) for s in case.binned if s.window.counters.get("cold_starts", 0.0) > 0]
    return tuple(
        StartQuantile(
            replica=replica,
            seconds=counters.get("cold_start_seconds", 0.0) / counters["cold_starts"],
            count=counters["cold_starts"],
        )
        for replica, counters in found
    )


def _judge_starts(case: RuleContext, starts: tuple[StartQuantile, ...], timing: Timing, planned: float) -> RuleResult:
    allowed = planned * case.limit("factor")
    count = math.fsum(one.count for one in starts)
    mean = math.fsum(one.seconds * one.count for one in starts) / count
    slowest = max(starts, key=lambda one: one.seconds)
    late = math.fsum(one.count for one in starts if one.seconds > allowed)
    observed = Reading(value=slowest.seconds, low=slowest.seconds, high=None, n=count)
    expected = _expect_planned(planned)
    starts_word = f"{count:.0f} start" if count == 1 else f"{count:.0f} starts"
    took = number(slowest.seconds, "seconds")
    details = [f"timed {FROM_TO[timing]}", _describe_part(timing, is_fine=not late)]
    if not late:
        most = f"at most {took}" if count > 1 else took
        sentence = f"{starts_word} took {most}; {number(planned, 'seconds')} are planned"
        certainty = certain_if(timing is Timing.POD)
        return case.verdict(Status.OK, certainty, observed, expected, sentence, details=details)
    sentence = (
        f"{late:.0f} of {starts_word} took longer than the planned {number(planned, 'seconds')}; "
        f"{slowest.replica or case.context.tier} {took}"
    )
    details.append(f"mean {number(mean, 'seconds')}" if count > 1 else "")
    return case.verdict(Status.WARNING, Certainty.CERTAIN, observed, expected, sentence, details=details)


def _describe_measured(case: RuleContext) -> str:
    """Return the measured time without a plan: the whole if it was timed, else the longest part."""
    known = quantiles_by_timing(case.starts)
    if known:
        one = next((each for each in known if each.timing is Timing.POD), max(known, key=lambda each: each.p95_seconds))
        return f"; {number(one.p95_seconds, 'seconds')} were measured {FROM_TO[one.timing]}"
    seconds = [one.seconds for one in _find_starts(case, Timing.PROCESS)]
    return f"; {number(max(seconds), 'seconds')} were measured {FROM_TO[Timing.PROCESS]}" if seconds else ""


MEASURED_FACTS = (
    ("engine_version", ENGINE_VERSION, "release"),
    ("max_num_seqs", "max_num_seqs", "max-num-seqs"),
    ("tensor_parallel", "tensor_parallel_size", "tensor parallel degree"),
)
"""Keys of `curve.measured` that pages tell, the fact of the page, and words."""


def judge_benchmark_stale(case: RuleContext) -> RuleResult:
    """Compare what the replicas run with what was benchmarked. Names on a page prove a release only by excluding it."""
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
    known = [one for one in compared if one is not None]
    other, expected = [text for text in known if text], exact_reading(0.0, 1.0)
    if not known:
        return case.unknown(
            Gap.NOT_EXPOSED, f"{_name_measured(wanted)} was benchmarked; the pages do not tell what runs"
        )
    observed = exact_reading(float(len(other)), float(len(known)))
    if not other:
        sentence = f"{_count_replicas(len(known), len(pages))} what was benchmarked: {_name_measured(wanted)}"
        return case.verdict(Status.OK, certain_if(len(known) == len(pages)), observed, expected, sentence)
    what = " and ".join(f"{text} ({other.count(text)})" for text in dict.fromkeys(other))
    what = what if len(set(other)) > 1 else other[0]
    differ = {key: wanted[key] for key, _, words in MEASURED_FACTS if key in wanted and words in what}
    sentence = f"{_count_replicas(len(other), len(pages))} {what}; {_name_measured(differ)} was benchmarked"
    when = f"benchmarked on {measured.measured_on}" if measured and measured.measured_on else ""
    status = Status.OK if len(other) < case.limit("replicas") else Status.WARNING
    return case.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=(when,))


def _count_replicas(count: int, all_replicas: int) -> str:
    if all_replicas == 1:
        return "The replica runs"
    return f"All {count} replicas run" if count == all_replicas else f"{count} of {all_replicas} replicas run"


def _name_measured(wanted: Mapping[str, str]) -> str:
    return ", ".join(f"{words} {wanted[key]}" for key, _, words in MEASURED_FACTS if key in wanted)


def _compare_facts(wanted: Mapping[str, str], facts: Mapping[str, str]) -> str | None:
    """Return what a page tells otherwise than the benchmark: "" for nothing, None if it tells nothing."""
    told = [
        (words, facts[fact], wanted[key]) for key, fact, words in MEASURED_FACTS if key in wanted and facts.get(fact)
    ]
    other = [f"{words} {runs}" for words, runs, was in told if not is_same_release(runs, was)]
    allowed = facts.get("engine_versions", "")
    if not facts.get(ENGINE_VERSION) and is_excluded(allowed, wanted.get("engine_version", "")):
        return ", ".join([f"a release {allowed}", *other])
    return ", ".join(other) if told else None


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
