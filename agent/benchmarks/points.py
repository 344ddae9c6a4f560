"""Points of a curve from the measurements of one load: records, rules for all tools, and remark texts.

Rules: Little's law for open loops, generator limits, start bursts, too few requests for a P99, refusal of failed runs.
Each tool's reader fills a `BenchmarkRun` in base units. A quantity missing in the file is None, never guessed. A new
remark is a constant here; its user fills the placeholders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import ValidationError

from agent.benchmarks.typed_fields import CONTRADICTION, ResultFields
from agent.errors import NotAResultError
from exporters.render.text import copy_fields
from rules.plan.checks import GENERATOR_LIMITED
from rules.plan.curve import LIMITED
from rules.plan.mistakes import FEW_FOR_A_P99
from rules.plan.schema import Point
from rules.plan.validation import problems_of
from rules.telemetry.contradictions import OF_MEANS, at_once_contradiction, find_contradictions

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
LOCAL_CLOCK = "the file's date has no time zone and was read as UTC"
ODD_DRAFTS = (
    "acceptance per drafted token is left out: drafts were {drafts:.3g} tokens long on average, no whole number"
)
NO_DRAFT_LENGTH = "acceptance per drafted token is left out: the file does not tell how long the drafts were"


FEW_FOR_P99 = 1000
"""Minimum number of requests for a P99 that rests on ten or more of them (PEERS 3.2, item 10)."""

BOUNDS_P99 = 299
"""Minimum number of requests for which the slowest bounds the true P99 with 95 % confidence.

The probability that all n are below the P99 is 0.99^n, at most 0.05. With fewer requests no measurement bounds it.
"""

START_SHARE = 0.01
"""Share of clients among the requests above which their start burst is the P99 (PEERS 3.2, item 11)."""

CHUNKED = 0.1
"""Ratio of median gap to TPOT below which a chunk has several tokens (PEERS 3.2, item 5: 0.04 ms of 3.5 to 16 ms)."""

LATENCIES = ("ttft_p50_seconds", "ttft_p99_seconds", "tpot_p50_seconds", *LIMITED[1:])
CARRIED = ("output_tokens_per_second", "prefix_hit_ratio", "speculative_acceptance")

Loop = Literal["open", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthQuantiles:
    """Tokens per request from the file."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Measured setup from the file; empty or None if not in the file.

    `engine` is a name of `rules.engines`, `gpu` is as in the file, `tensor_parallel` the number of GPUs per layer. The
    others are those of `rules.plan.schema.Provenance`.
    """

    engine: str = ""
    gpu: str = ""
    engine_version: str = ""
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    max_num_seqs: int | None = None
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkMeasurement:
    """Load of one run.

    `source` is the file as named, `place` the position in it (empty: the whole file). Times are unix seconds, None if
    the file has none. `remarks` are sentences for readers of the curve.
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
        """Return file and place for messages."""
        return f"{self.source}: {self.place}" if self.place else self.source


Loads = tuple[BenchmarkMeasurement | NotAResultError, ...]
"""Loads of a file in its order, and an error for each without a place in a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRun:
    """Load as reported by a file; None means not reported. `_seconds` are seconds, `_rps` requests per second.

    `requests` succeeded; `failed` and `cut_off` (in flight at the end) are extra. `clients` is set for a closed loop.
    `sent_rps` is the rate the generator reached, if recorded. `burst`: all requests were sent at once. `ttft_requests`
    is the number of requests behind the TTFT if the start was excluded. `at_once` is the mean number of requests in the
    system as reported.
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
    at_once: float | None = None
    latency_mean_seconds: float | None = None
    latency_max_seconds: float | None = None
    ttft_mean_seconds: float | None = None
    ttft_p50_seconds: float | None = None
    ttft_p99_seconds: float | None = None
    ttft_requests: int | None = None
    tpot_mean_seconds: float | None = None
    tpot_p50_seconds: float | None = None
    tpot_p99_seconds: float | None = None
    itl_p50_seconds: float | None = None
    itl_p99_seconds: float | None = None
    e2e_p99_seconds: float | None = None
    output_tokens_per_second: float | None = None
    prefix_hit_ratio: float | None = None
    speculative_acceptance: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    model: str = ""
    setup: Setup = Setup()
    prompt_tokens: LengthQuantiles = LengthQuantiles()
    generation_tokens: LengthQuantiles = LengthQuantiles()
    remarks: tuple[str, ...] = ()

    @property
    def sent(self) -> int:
        """Return the number of requests sent."""
        return self.requests + self.failed + self.cut_off


def build_measurement(part: ResultFields, tool: str, run: BenchmarkRun) -> BenchmarkMeasurement:
    """Return the point of one load.

    Raise BenchmarkError if no request succeeded, or fewer than failed or than were cut off. Raise it also for a value
    outside the limits of a plan's point, and NotAResultError for numbers that exclude each other. A burst is all requests
    sent at once, or as many clients as requests. The number in the system then falls from all to none, which is not a
    steady load. Its `loop` is None and it keeps only the throughput.
    """
    _refuse_failed(part, run)
    burst = run.burst or _all_at_once(run)
    run = _without_contradictions(part, run, burst)
    censored = not burst and _generator_limited(run)
    values = copy_fields(run, *(() if burst else LATENCIES), *CARRIED)
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
        **copy_fields(part, "source", "place"),
        tool=tool,
        loop=None if burst else run.loop,
        point=point,
        **copy_fields(run, "started_at", "ended_at", "model", "setup", "prompt_tokens", "generation_tokens"),
        remarks=tuple(_remarks(run, burst, censored)) + run.remarks,
    )


def _without_contradictions(part: ResultFields, run: BenchmarkRun, burst: bool) -> BenchmarkRun:
    """Return the run without the times that are surely wrong: TPOT and ITL, and TTFT if answers were not streamed.

    A TPOT is surely wrong if the clients of a closed loop confirm the E2E. Raise NotAResultError if nothing tells which
    of the numbers is wrong.
    """
    tokens, e2e, clients = run.generation_tokens.mean, run.latency_mean_seconds, None if burst else run.clients
    tpot = run.tpot_mean_seconds or run.tpot_p50_seconds
    found = [*find_contradictions(ttft=run.ttft_mean_seconds, e2e=e2e, tpot=tpot, tokens=tokens)]
    if run.ttft_requests is None:
        found += find_contradictions(ttft=run.ttft_p99_seconds, e2e=run.e2e_p99_seconds, of="P99")
    if run.ttft_mean_seconds is not None and tpot and tokens:
        e2e = e2e or run.ttft_mean_seconds + tpot * max(0.0, tokens - 1)
    steady = run.requests if run.loop == "closed" and not (run.failed or run.cut_off) else None
    misplaced = at_once_contradiction(clients, run.completed_rps, e2e, steady) if clients and e2e else None
    confirmed = steady is not None and clients is not None and misplaced is None
    sure = [entry for entry in found if entry.not_streamed or (confirmed and "tpot" in entry.wrong)]
    texts = [*(entry.text for entry in found if entry not in sure), *([misplaced] if misplaced else [])]
    if run.at_once and e2e and not 1 / OF_MEANS <= run.completed_rps * e2e / run.at_once <= OF_MEANS:
        texts.append(
            f"{run.completed_rps:.4g} rps x {e2e:.4g} s are not the reported {run.at_once:.4g} requests at once"
        )
    if texts:
        raise part.left_out(f"tells what excludes each other: {'; '.join(texts)}, {CONTRADICTION}")
    if not sure:
        return run
    kept = ("e2e",) if sure[0].not_streamed else ("e2e", "ttft")
    untold: dict[str, Any] = {name: None for name in LATENCIES if not name.startswith(kept)}
    remark = f"{sure[0].text}, {CONTRADICTION}; {'TPOT' if 'ttft' in kept else 'TTFT, TPOT'} and ITL are left out"
    return replace(run, **untold, remarks=(*run.remarks, remark))


def mean_concurrency(run: BenchmarkRun) -> float | None:
    """Return the mean requests in the system: clients of a closed loop, else completed rps x mean latency (Little's
    law).

    Tools' peaks are not used (vLLM's `max_concurrent_requests` counted whole seconds until 0.32).
    """
    if run.loop == "closed":
        return run.clients
    return run.completed_rps * run.latency_mean_seconds if run.latency_mean_seconds else None


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
    if run.latency_max_seconds is None or run.latency_max_seconds >= run.duration_seconds:
        return None
    return run.sent / (run.duration_seconds - run.latency_max_seconds)


def _generator_limited(run: BenchmarkRun) -> bool:
    """Return whether less than 0.98 of the requested rate was sent (PEERS 3.2, item 9)."""
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
    """Yield the limits of this run's P99; nothing if the file has no P99."""
    if any(getattr(run, name) is not None for name in LIMITED) and run.requests < FEW_FOR_P99:
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
