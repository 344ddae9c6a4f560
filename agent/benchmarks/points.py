"""From what a tool measured at one load to a point of the curve: the rules that hold for every tool.

Owns the load of a point (Little's law for open loops), the generator as the limit, start bursts, requests too few for
a P99, and the refusal of runs that measured nothing. It reads no file: each tool's file fills a `Run`, in base units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from agent.benchmarks import remarks
from agent.benchmarks.results import BenchmarkMeasurement, LengthQuantiles, Loop, Setup
from agent.benchmarks.typed_fields import ResultFields
from rules.plan.checks import GENERATOR_LIMITED
from rules.plan.mistakes import FEW_FOR_A_P99
from rules.plan.schema import Point
from rules.plan.validation import problems_of

FEW_FOR_P99 = 1000
"""With fewer requests the P99 rests on less than ten of them (PEERS 3.2, item 10)."""

BOUNDS_P99 = 299
"""From so many requests on the slowest bounds the true P99 with 95 % confidence: 0.99^n, the probability that all n are below
it, is then at most 0.05. With fewer nothing that was measured bounds it."""

START_SHARE = 0.01
"""Clients above this share of the requests: the burst with which they start is the P99 (PEERS 3.2, item 11)."""

CHUNKED = 0.1
"""Median gap below this share of the TPOT: several tokens a chunk (PEERS 3.2, item 5: 0.04 ms of 3.5 to 16 ms)."""


UNTOLD = LengthQuantiles()
UNTOLD_SETUP = Setup()


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRun:
    """What a file says of one load. None: it does not say. `_seconds` are seconds, `_rps` requests per second.

    `requests` are those that succeeded; `failed` and `cut_off` (under way at the end) come on top. `clients` is a
    closed loop's number. `sent_rps` is the rate the generator reached, where the tool recorded it. `burst`: everything
    was sent at once. `ttft_requests` are those behind the TTFT where the start was left out of it.
    """

    completed_rps: float
    requests: int
    failed: int = 0
    cut_off: int = 0
    loop: Loop | None = None
    burst: bool = False
    clients: float | None = None
    requested_rps: float | None = None
    sent_rps: float | None = None
    duration_seconds: float | None = None
    latency_mean_seconds: float | None = None
    latency_max_seconds: float | None = None
    ttft_p50_seconds: float | None = None
    ttft_p99_seconds: float | None = None
    ttft_requests: int | None = None
    tpot_p50_seconds: float | None = None
    tpot_p99_seconds: float | None = None
    itl_p50_seconds: float | None = None
    itl_p99_seconds: float | None = None
    output_tokens_per_second: float | None = None
    prefix_hit_ratio: float | None = None
    speculative_acceptance: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    model: str = ""
    setup: Setup = UNTOLD_SETUP
    prompt_tokens: LengthQuantiles = UNTOLD
    generation_tokens: LengthQuantiles = UNTOLD
    remarks: tuple[str, ...] = ()

    @property
    def sent(self) -> int:
        """Requests sent, whatever became of them."""
        return self.requests + self.failed + self.cut_off


LATENCIES = ("ttft_p50_seconds", "ttft_p99_seconds", "tpot_p50_seconds", "tpot_p99_seconds", "itl_p99_seconds")
CARRIED = ("output_tokens_per_second", "prefix_hit_ratio", "speculative_acceptance")


def build_measurement(part: ResultFields, tool: str, run: BenchmarkRun) -> BenchmarkMeasurement:
    """The point of one load.

    Raises BadBenchmark where nothing was measured (no request succeeded, or more failed or were cut off than did) and
    where a value is outside what a plan's point may hold.

    A burst (everything sent at once, also where there are as many clients as requests) is no steady load: the number
    in the system falls from all to none and its TTFT tells only how many there were. `loop` is None, latencies and
    concurrency are left out, and what remains is the throughput.
    """
    _refuse_failed(part, run)
    burst = run.burst or _all_at_once(run)
    censored = not burst and _generator_limited(run)
    values = {name: getattr(run, name) for name in (*(() if burst else LATENCIES), *CARRIED)}
    try:
        point = Point(
            completed_rps=run.completed_rps,
            concurrency=None if burst else mean_concurrency(run),
            requested_rps=run.requested_rps,
            requests=run.requests,
            censored=censored,
            prompt_tokens_mean=run.prompt_tokens.mean,
            **values,
        )
    except ValidationError as error:
        raise part.bad(f"does not make a point of a curve: {problems_of(error, Point)[0]}") from None
    return BenchmarkMeasurement(
        source=part.source,
        place=part.place,
        tool=tool,
        loop=None if burst else run.loop,
        point=point,
        started_at=run.started_at,
        ended_at=run.ended_at,
        model=run.model,
        setup=run.setup,
        prompt_tokens=run.prompt_tokens,
        generation_tokens=run.generation_tokens,
        remarks=tuple(_remarks(run, burst, censored)) + run.remarks,
    )


def mean_concurrency(run: BenchmarkRun) -> float | None:
    """Mean requests in the system: the clients of a closed loop, else completed rps x mean latency (Little's law).

    Never the peak that some tools print (vLLM's `max_concurrent_requests` counted whole seconds until 0.32).
    """
    if run.loop == "closed":
        return run.clients
    return run.completed_rps * run.latency_mean_seconds if run.latency_mean_seconds else None


def sent_rps(run: BenchmarkRun) -> float | None:
    """The rate that the generator reached: as recorded, else the highest that duration and latencies allow.

    A run ends with the last answer, so completed rps falls short of the rate even of a generator that kept up. The
    last request was sent at the earliest one slowest latency before the end: n / (duration - slowest) is therefore
    at least the rate of sending, and only where that falls short has the generator been too slow for certain. A run
    that stops its requests at the end has no such tail. None where the file lacks what is needed.
    """
    if run.sent_rps or not run.duration_seconds:
        return run.sent_rps
    if run.cut_off:
        return run.sent / run.duration_seconds
    if run.latency_max_seconds is None or run.latency_max_seconds >= run.duration_seconds:
        return None
    return run.sent / (run.duration_seconds - run.latency_max_seconds)


def _generator_limited(run: BenchmarkRun) -> bool:
    """Sent less than 0.98 of the requested rate (PEERS 3.2, item 9)."""
    sent = sent_rps(run)
    return bool(run.requested_rps and sent is not None and sent < GENERATOR_LIMITED * run.requested_rps)


def _all_at_once(run: BenchmarkRun) -> bool:
    return run.loop == "closed" and run.clients is not None and run.clients > 1 and run.clients >= run.sent


def _refuse_failed(part: ResultFields, run: BenchmarkRun) -> None:
    if not run.requests:
        raise part.bad(f"is of a failed run: {f'none of {run.sent} requests' if run.sent else 'no request'} succeeded")
    for number, what in ((run.failed, "failed"), (run.cut_off, "were cut off")):
        if number > run.requests:
            raise part.bad(f"is of a failed run: {number} of {run.sent} requests {what}")


def _remarks(run: BenchmarkRun, burst: bool, censored: bool) -> Iterator[str]:
    if burst:
        yield remarks.BURST.format(requests=run.sent)
    else:
        yield from _load_remarks(run, censored)
        yield from _tail_remarks(run)
    if run.failed:
        yield remarks.UNSUCCESSFUL.format(failed=run.failed, all=run.sent)
    if run.cut_off:
        yield remarks.CUT_OFF.format(cut_off=run.cut_off, all=run.sent)


def _load_remarks(run: BenchmarkRun, censored: bool) -> Iterator[str]:
    asked, sent = run.requested_rps, sent_rps(run)
    if censored:
        yield remarks.CENSORED.format(sent=sent, asked=asked)
    elif asked and run.completed_rps < GENERATOR_LIMITED * asked:
        text = remarks.UNTOLD_LIMIT if sent is None else remarks.BEHIND
        yield text.format(completed=run.completed_rps, asked=asked)


def _tail_remarks(run: BenchmarkRun) -> Iterator[str]:
    """What the P99 of this run cannot bear; nothing where the file holds none."""
    p99 = (run.ttft_p99_seconds, run.tpot_p99_seconds, run.itl_p99_seconds)
    if any(value is not None for value in p99) and run.requests < FEW_FOR_P99:
        text = remarks.LAST_ONE if run.requests < FEW_FOR_A_P99 else remarks.NEAR_LAST
        unbounded = remarks.UNBOUNDED if run.requests < BOUNDS_P99 else ""
        yield (text + unbounded).format(requests=run.requests, missed=0.99**run.requests)
    if run.ttft_requests is not None:
        yield remarks.START_LEFT_OUT.format(rest=run.ttft_requests, clients=run.clients)
    elif (
        run.loop == "closed"
        and run.ttft_p99_seconds is not None
        and (run.clients or 0) > max(1, START_SHARE * run.requests)
    ):
        yield remarks.START_KEPT.format(clients=run.clients, requests=run.requests)
    if run.itl_p50_seconds is not None and run.itl_p50_seconds < CHUNKED * (run.tpot_p50_seconds or 0):
        yield remarks.CHUNKED_REMARK
