"""From what a tool measured at one load to a point of the curve: the rules that hold for every tool.

Owns the load of a point (Little's law for open loops), the generator as the limit, start bursts, requests too few for
a P99, and the refusal of runs that measured nothing. It reads no file: each tool's file fills a `Run`, in base units.

The words for what a reader of a measured point must know, each once.

Owns texts only; which of them a point gets is decided in `agent.benchmarks.points` and, for what one tool alone can
say, in that tool's file. A new remark is a constant here; its placeholders are filled by whoever gives it.

What a benchmark's result file says, whatever tool wrote it: one record a load.

Owns the record and nothing else. How a tool spells it is one file beside this one, listed in `agent.benchmarks.formats`;
how records become a curve is `agent.benchmarks.curves`'s business. A quantity that the file does not hold is None: it is
never guessed from another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from agent.benchmarks.typed_fields import ResultFields
from rules.plan.checks import GENERATOR_LIMITED
from rules.plan.mistakes import FEW_FOR_A_P99
from rules.plan.schema import Point
from rules.plan.validation import problems_of

BURST = (
    "{requests} requests were sent as fast as possible: a queue that drains is no load, so its latencies are left out"
)
CENSORED = "the generator sent {sent:.4g} of {asked:.4g} requested rps: the server is at least this bad"
BEHIND = (
    "completed {completed:.4g} of {asked:.4g} requested rps though the generator kept up: a backlog, or a short run"
)
UNTOLD_LIMIT = (
    "completed {completed:.4g} of {asked:.4g} requested rps; whether generator or server was the limit is not told"
)
NO_LOAD = "the file tells neither rate nor concurrency, so neither an open nor a closed loop"
BESIDE_RATES = "one client at a time, the lowest load of a sweep whose others are open loops"
TRACE = "arrivals were {kind}, not a steady rate"
LAST_ONE = "P99 of {requests} requests is that of the slowest"
NEAR_LAST = "P99 of {requests} requests is close to the slowest"
UNBOUNDED = "; the true P99 is above the slowest with a probability of {missed:.0%}, and nothing bounds it"
START_KEPT = "closed loop: TTFT P99 is that of the start burst, {clients:.4g} of {requests} requests"
START_LEFT_OUT = "TTFT is of the {rest} requests after the start burst of {clients:.4g}"
UNSUCCESSFUL = "{failed} of {all} requests did not succeed and are not in the latencies"
CUT_OFF = "{cut_off} of {all} requests were under way at the end and are not in the latencies"
CHUNKED_REMARK = "several tokens came in one chunk, so ITL counts gaps of nearly 0 s: compare TPOT"
CONTRADICTION = "which cannot be"
"""In every sentence about counters of an engine that contradict each other: what they say is left out."""

LOCAL_CLOCK = "the file's date has no time zone and was read as UTC"
ODD_DRAFTS = (
    "acceptance per drafted token is left out: drafts were {drafts:.3g} tokens long on average, no whole number"
)
NO_DRAFT_LENGTH = "acceptance per drafted token is left out: the file does not tell how long the drafts were"


Loop = Literal["open", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthQuantiles:
    """Tokens a request: what the file tells of them."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was measured, as far as the file tells; empty or None: it does not.

    `engine` is a name of `rules.engines`, `gpu` as the file spells it, `tensor_parallel` the GPUs over which a layer is split.
    """

    engine: str = ""
    gpu: str = ""
    tensor_parallel: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkMeasurement:
    """One load of one run.

    `source` is the file as it was named, `place` where in it (empty: the whole file). Times are unix seconds, None where
    the file has none. `remarks` say what a reader of the curve must know of this point, a sentence each.
    """

    source: str
    place: str = ""
    tool: str
    loop: Loop | None
    point: Point
    started_at: float | None = None
    ended_at: float | None = None
    model: str = ""
    setup: Setup = Setup()
    prompt_tokens: LengthQuantiles = LengthQuantiles()
    generation_tokens: LengthQuantiles = LengthQuantiles()
    remarks: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        """File and place, for messages."""
        return f"{self.source}: {self.place}" if self.place else self.source


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
        yield BURST.format(requests=run.sent)
    else:
        yield from _load_remarks(run, censored)
        yield from _tail_remarks(run)
    if run.failed:
        yield UNSUCCESSFUL.format(failed=run.failed, all=run.sent)
    if run.cut_off:
        yield CUT_OFF.format(cut_off=run.cut_off, all=run.sent)


def _load_remarks(run: BenchmarkRun, censored: bool) -> Iterator[str]:
    asked, sent = run.requested_rps, sent_rps(run)
    if censored:
        yield CENSORED.format(sent=sent, asked=asked)
    elif asked and run.completed_rps < GENERATOR_LIMITED * asked:
        text = UNTOLD_LIMIT if sent is None else BEHIND
        yield text.format(completed=run.completed_rps, asked=asked)


def _tail_remarks(run: BenchmarkRun) -> Iterator[str]:
    """What the P99 of this run cannot bear; nothing where the file holds none."""
    p99 = (run.ttft_p99_seconds, run.tpot_p99_seconds, run.itl_p99_seconds)
    if any(value is not None for value in p99) and run.requests < FEW_FOR_P99:
        text = LAST_ONE if run.requests < FEW_FOR_A_P99 else NEAR_LAST
        unbounded = UNBOUNDED if run.requests < BOUNDS_P99 else ""
        yield (text + unbounded).format(requests=run.requests, missed=0.99**run.requests)
    if run.ttft_requests is not None:
        yield START_LEFT_OUT.format(rest=run.ttft_requests, clients=run.clients)
    elif (
        run.loop == "closed"
        and run.ttft_p99_seconds is not None
        and (run.clients or 0) > max(1, START_SHARE * run.requests)
    ):
        yield START_KEPT.format(clients=run.clients, requests=run.requests)
    if run.itl_p50_seconds is not None and run.itl_p50_seconds < CHUNKED * (run.tpot_p50_seconds or 0):
        yield CHUNKED_REMARK
