"""Point of a curve from one run: rules for all tools, and remark texts.

Rules: Little's law for open loops, generator limits, start bursts, too few requests for a P99, refusal of failed runs.
Each tool's model is a `BenchmarkRun` in base units. A quantity missing in the file is None, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from agent.benchmarks.run_model import CONTRADICTION, NOTHING, BenchmarkRun
from agent.errors import NotAResultError
from exporters.render.text import copy_fields
from rules.plan.schema import Point
from rules.plan.validation import PROBLEMS, problems_of
from rules.telemetry.contradictions import OF_MEANS, at_once_contradiction, find_contradictions
from rules.telemetry.wording import probability

FEW_FOR_P99 = 1000
"""Minimum number of requests for a P99 that rests on ten or more of them (PEERS 3.2, item 10)."""

GENERATOR_LIMITED = 0.98
"""Completed below this share of requested rps: the generator may have been the limit (PEERS 3.2, item 9)."""

START_SHARE = 0.01
"""Share of clients among the requests above which their start burst is the P99 (PEERS 3.2, item 11)."""

CHUNKED = 0.1
"""Ratio of median gap to TPOT below which a chunk has several tokens (PEERS 3.2, item 5: 0.04 ms of 3.5 to 16 ms)."""


def set_point(run: BenchmarkRun) -> None:
    """Set the point of a run and its remarks.

    Raise NotAResultError if no request succeeded, or fewer than failed or than were cut off, for a value outside the
    limits of a plan's point, and for numbers that exclude each other. A burst is all requests sent at once, or as many
    clients as requests. The number in the system then falls from all to none, which is not a steady load. Its `loop` is
    None and it keeps only the throughput.
    """
    if not run.requests and run.origin == "measured":
        succeeded = f"none of {run.sent} requests" if run.sent else "no request"
        raise NotAResultError(run.location, f"is of a failed run: {succeeded} succeeded")
    for count, what in ((run.failed, "failed"), (run.cut_off, "were cut off")):
        if count > run.requests:
            raise NotAResultError(run.location, f"is of a failed run: {count} of {run.sent} requests {what}")
    if run.loop == "closed" and run.requests and (run.clients or 0) > max(1, run.sent - 1):
        run.burst = True
    run.remarks += _drop_contradictions(run)
    if run.burst:
        run.loop, run.latency, run.ttft, run.tpot, run.itl = None, NOTHING, NOTHING, NOTHING, NOTHING
    sent = sent_rps(run)
    # PEERS 3.2, item 9.
    slow = bool(run.requested_rps and sent is not None and sent < GENERATOR_LIMITED * run.requested_rps)
    # Little's law. Tools' peaks are not used (vLLM's `max_concurrent_requests` counted whole seconds until 0.32).
    concurrency = run.completed_rps * run.latency.mean if run.latency.mean else None
    times = {"ttft": run.ttft, "tpot": run.tpot, "itl": run.itl, "e2e": run.latency}
    latencies = {f"{name}_p50_seconds": times[name].p50 for name in ("ttft", "tpot")}
    latencies |= {f"{name}_p99_seconds": each.p99 for name, each in times.items()}
    try:
        run.point = Point(
            completed_rps=run.completed_rps,
            concurrency=run.clients if run.loop == "closed" else concurrency,
            requested_rps=run.requested_rps,
            requests=run.requests or None,
            censored=slow and not run.burst,
            prompt_tokens_mean=run.prompt_tokens.mean,
            **latencies,
            **copy_fields(run, "output_tokens_per_second", "prefix_hit_ratio", "speculative_acceptance"),
        )
    except ValidationError as error:
        problem = problems_of(error, Point)[0]
        text = f"does not make a point of a curve: {problem}"
        if error.errors()[0]["type"] == PROBLEMS:
            text = f"contradicts itself: {problem}, {CONTRADICTION}"
        raise NotAResultError(run.location, text) from None
    run.remarks = [*_remarks(run, sent), *run.remarks]


def _drop_contradictions(run: BenchmarkRun) -> Iterator[str]:
    """Clear the times of answers that were not streamed, with a remark. Raise NotAResultError for other contradictions."""
    tokens, e2e, clients = run.generation_tokens.mean, run.latency.mean, None if run.burst else run.clients
    tpot = run.tpot.mean or run.tpot.p50
    contradictions = [
        *find_contradictions(ttft=run.ttft.mean, e2e=e2e, tpot=tpot, tokens=tokens),
        *find_contradictions(ttft=run.ttft.p99, e2e=run.latency.p99, of="P99"),
    ]
    texts = [entry.text for entry in contradictions if not entry.not_streamed]
    if run.ttft.mean is not None and tpot and tokens:
        e2e = e2e or run.ttft.mean + tpot * max(0.0, tokens - 1)
    steady = run.requests if run.loop == "closed" and not (run.failed or run.cut_off) else None
    if clients and e2e and (text := at_once_contradiction(clients, run.completed_rps, e2e, steady)):
        texts.append(text)
    if run.at_once and e2e and not 1 / OF_MEANS <= run.completed_rps * e2e / run.at_once <= OF_MEANS:
        texts.append(
            f"{run.completed_rps:.4g} rps x {e2e:.4g} s are not the reported {run.at_once:.4g} requests at once"
        )
    if texts:
        raise NotAResultError(run.location, f"tells what excludes each other: {'; '.join(texts)}, {CONTRADICTION}")
    if contradictions:
        run.ttft = run.tpot = run.itl = NOTHING
        yield f"{contradictions[0].text}, {CONTRADICTION}; TTFT, TPOT and ITL are left out"


def sent_rps(run: BenchmarkRun) -> float | None:
    """Return the rate the generator reached: the recorded rate, or its upper bound from duration and latencies.

    A run ends with the last response, so completed rps is below the rate even of a fast generator. The last request was
    sent at least one slowest latency before the end. So n / (duration - slowest) is an upper bound of the rate. Only if
    this bound is below the requested rate was the generator too slow for certain. A run that cuts off its requests has
    no such tail. Return None if the file lacks these values.
    """
    if run.sent_rps or not run.duration_seconds:
        return run.sent_rps
    if run.cut_off:
        return run.sent / run.duration_seconds
    if run.latency.max is None or run.latency.max >= run.duration_seconds:
        return None
    return run.sent / (run.duration_seconds - run.latency.max)


def _remarks(run: BenchmarkRun, sent: float | None) -> Iterator[str]:
    """Yield what a reader of the point must know.

    The probability that all n requests are below the true P99 is 0.99^n, at most 5 % from 299 requests on.
    """
    if run.burst:
        text = f"{run.sent} requests were sent as fast as possible: a queue that drains is no load"
        yield f"{text}, so its latencies are left out"
    elif run.point.censored:
        yield f"the generator sent {sent:.4g} of {run.requested_rps:.4g} requested rps: the server is at least this bad"
    elif run.requested_rps and run.completed_rps < GENERATOR_LIMITED * run.requested_rps:
        why = "the file does not show whether the generator was the limit"
        if sent is not None:
            why = "the generator kept up, so there is a backlog, or the run was short"
        yield f"completed {run.completed_rps:.4g} of {run.requested_rps:.4g} requested rps; {why}"
    if any(each.p99 is not None for each in (run.ttft, run.tpot, run.itl, run.latency)) and run.requests < FEW_FOR_P99:
        text = f"P99 of {run.requests} requests rests on the slowest few"
        yield f"{text}: the true P99 is above all of them with {probability(0.99**run.requests)}"
    if run.loop == "closed" and run.ttft.p99 is not None and (run.clients or 0) > max(1, START_SHARE * run.requests):
        yield f"closed loop: TTFT P99 is that of the start burst, {run.clients:.4g} of {run.requests} requests"
    if run.itl.p99 is not None and (run.itl.p50 or 0) < CHUNKED * (run.tpot.p50 or 0):
        yield "several tokens came in one chunk, so ITL counts gaps of nearly 0 s: compare TPOT"
    if lost := run.failed + run.cut_off:
        yield f"{lost} of {run.sent} requests failed or were under way at the end, and are not in the latencies"
