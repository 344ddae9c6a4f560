"""Load of one run as a pydantic model, which the model of each tool fills from its file by aliases, and its point of a curve.

Times are seconds, rates per second. Absent, null and zero are None: tools write 0 for no measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise, product
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AliasChoices, AliasGenerator, AliasPath, BaseModel, ConfigDict, Field, ValidationError
from pydantic.functional_validators import BeforeValidator, model_validator
from pydantic_core import PydanticUndefined

from agent.errors import BenchmarkError, NotAResultError
from exporters.render.text import copy_fields
from rules.plan.schema import Point, Provenance
from rules.plan.validation import path_text, problems_of
from rules.telemetry.contradictions import FEWEST_REQUESTS, OF_MEANS, at_once_contradiction, find_contradictions
from rules.telemetry.wording import format_count, probability

CONTRADICTION = "which cannot be"
"""Phrase in every remark about values that exclude each other and are dropped."""

FEW_FOR_P99 = 1000
"""Minimum number of requests for a P99 that rests on ten or more of them (PEERS 3.2, item 10)."""

GENERATOR_LIMITED = 0.98
"""Completed below this share of requested rps: the generator may have been the limit (PEERS 3.2, item 9)."""

FAILED_SHARE = 0.05
"""Share of failed requests above which a load is not carried: the P95 of all that were sent has no bound (ours)."""

START_SHARE = 0.01
"""Share of clients among the requests above which their start burst is the P99 (PEERS 3.2, item 11)."""

OF_RATES = 1.8
"""Factor between a rate and the counts and times behind it that neither rounding nor arrivals by chance explain."""

CHUNKED = 0.1
"""Ratio of median gap to TPOT below which a chunk has several tokens (PEERS 3.2, item 5: 0.04 ms of 3.5 to 16 ms)."""


def to_whole(value: Any) -> Any:
    """Return a whole number as int, anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unix_seconds(value: Any) -> Any:
    """Return the time of day in a text, and None for none. A text without a zone is UTC, such as 20260102-030405."""
    if not isinstance(value, str) or not value:
        return value or None
    time = datetime.fromisoformat(value)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


Number = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
"""No run has as much of anything. Sums and products stay finite."""
Measured = Annotated[Number | None, BeforeValidator(lambda v: None if v == 0 and v is not False else v)]
Moment = Annotated[Annotated[Number, Field(le=253_402_300_799)] | None, BeforeValidator(_unix_seconds)]
"""Unix seconds up to the year 9999: a time in milliseconds is later."""
Count = Annotated[int, BeforeValidator(to_whole), Field(ge=0, le=2**53)]
"""Above 2^53 a float does not hold every whole number."""
Tally = Annotated[Count, BeforeValidator(lambda v: v or 0)]
Text = Annotated[str, BeforeValidator(lambda v: v or "")]
Numbers = Annotated[list[Number], BeforeValidator(lambda v: v or [])]


class Statistics(BaseModel):
    """Statistics of one quantity over the requests of a run, by the names of all tools."""

    model_config = ConfigDict(strict=True, frozen=True, populate_by_name=True)

    mean: Measured = Field(None, validation_alias=AliasChoices("mean", "avg"))
    min: Measured = None
    p50: Measured = Field(None, validation_alias=AliasChoices("p50", "median"))
    p90: Measured = Field(None, validation_alias=AliasChoices("p90", AliasPath("percentiles", "p90")))
    p95: Measured = Field(None, validation_alias=AliasChoices("p95", AliasPath("percentiles", "p95")))
    p99: Measured = Field(None, validation_alias=AliasChoices("p99", AliasPath("percentiles", "p99")))
    max: Measured = None


RISING = (("min", "p50", "p90", "p95", "p99", "max"), ("min", "mean", "max"))
"""Statistics of which none is below the one before it."""

Distribution = Annotated[Statistics, BeforeValidator(lambda v: {} if v is None else v)]
NOTHING = Statistics()


def _paths_of(places: str) -> AliasChoices:
    """Return the places of a file in a text, such as `successes/count entries/0`. The first that exists counts."""
    paths = []
    for place in places.split():
        first, *rest = place.split("/")
        paths.append(AliasPath(first, *(int(key) if key.isdigit() else key for key in rest)))
    return AliasChoices(*paths)


def look_up(data: Mapping[str, Any], place: str, default: Any = None) -> Any:
    """Return the value at a place of a file, `default` where there is none."""
    (path,) = _paths_of(place).choices
    value = path.search_dict_for_path(dict(data))  # type: ignore[union-attr]
    return default if value is PydanticUndefined else value


def at_places(places: str, default: Any = None) -> Any:
    return Field(default, validation_alias=_paths_of(places))


def file_places(*same: str, **places: str) -> ConfigDict:
    """Return the configuration of a model whose fields have these places in a file, those of `same` their own name.

    A field without a place is never read: no key of a file begins with `=`.
    """
    places |= dict(zip(same, same, strict=True))
    generator = AliasGenerator(validation_alias=lambda name: _paths_of(places.get(name, f"={name}")))
    return ConfigDict(strict=True, alias_generator=generator)


class BenchmarkRun(BaseModel):
    """Load as reported by a file. A tool's model has the places of its file; a field without one is worked out.

    `requests` succeeded; `failed` and `cut_off` (in flight at the end) are extra, `request_total` all. `clients` of a closed
    loop are its load, of an open one their limit. `burst`: all requests were sent at once. `at_once` is the mean number of
    requests in the system as reported. `itl` are gaps between two chunks, `tpot` is per request. Times of day are unix seconds.
    `source` is the file, `location` the place in it. `engine`, `gpu`, `gpus` and `configuration` are of predictions.
    """

    origin: ClassVar[str] = "measured"
    """How the numbers came about: measured on an engine, or predicted by a planner."""
    milliseconds: ClassVar[tuple[str, ...]] = ()
    """Times in milliseconds in the file; the others are in seconds."""

    completed_rps: Number
    requests: Count
    failed: Tally = 0
    cut_off: Tally = 0
    request_total: Tally = 0
    loop: Literal["open", "closed"] | None = None
    burst: bool = False
    clients: Measured = None
    requested_rps: Measured = None
    sent_rps: Measured = None
    duration_seconds: Measured = None
    at_once: Measured = None
    latency: Distribution = NOTHING
    ttft: Distribution = NOTHING
    tpot: Distribution = NOTHING
    itl: Distribution = NOTHING
    output_tokens_per_second: Measured = None
    prefix_hit_ratio: float | None = None
    started_at: Moment = None
    ended_at: Moment = None
    model: Text = ""
    setup: Provenance = Provenance()
    engine: Text = ""
    gpu: Text = ""
    gpus: Tally = 0
    configuration: str = ""
    prompt_tokens: Distribution = NOTHING
    generation_tokens: Distribution = NOTHING
    remarks: list[str] = Field(default_factory=list)
    source: str = ""
    location: str = ""
    point: Point = Point.model_construct(completed_rps=0.0)

    @model_validator(mode="after")
    def _in_seconds(self) -> Self:
        for name in self.milliseconds:
            known = getattr(self, name).model_dump(exclude_none=True)
            setattr(self, name, Statistics.model_construct(**{key: value / 1000 for key, value in known.items()}))
        return self

    @property
    def sent(self) -> int:
        return self.requests + self.failed + self.cut_off

    @classmethod
    def read_all(cls, location: str, data: Mapping[str, Any], errors: list[BenchmarkError]) -> list[Self]:
        """Return the runs of a document. Append an error for each that is left out, with its first wrong value."""
        try:
            return [cls.model_validate(data).model_copy(update={"location": location})]
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            text = f"has a wrong value: {path_text(wrong['loc'])}: {wrong['msg'][0].lower()}{wrong['msg'][1:]}"
            if wrong["type"] == "greater_than_equal":
                text += f", {CONTRADICTION}"
            if not wrong["loc"] and wrong["type"] == "value_error":
                # A sentence of the model about the whole run.
                text = str(wrong["ctx"]["error"])
            errors.append(NotAResultError(location, text))
            return []

    def set_loop(self) -> None:
        """Take a rate as the load of an open loop, or else clients as the load of a closed one."""
        if self.requested_rps:
            self.loop = "open"
        elif self.clients:
            self.loop = "closed"
        else:
            self.remarks.append("the file tells neither rate nor concurrency, so neither an open nor a closed loop")


def set_point(run: BenchmarkRun) -> None:
    """Set the point of a run and its remarks.

    Raise NotAResultError for a failed run and for numbers that exclude each other. A burst keeps only its throughput.
    """
    if run.origin == "measured" and run.requests < max(1, run.failed, run.cut_off):
        raise NotAResultError(run.location, f"is of a failed run: {run.requests} of {run.sent} requests succeeded")
    if run.loop == "closed" and run.requests and (run.clients or 0) > max(1, run.sent - 1):
        run.burst = True
    run.remarks += _drop_contradictions(run)
    if run.burst:
        run.loop, run.latency, run.ttft, run.tpot, run.itl = None, NOTHING, NOTHING, NOTHING, NOTHING
    # The rate reached, or its upper bound: the last request was sent at least one slowest latency before the end. A run
    # that cuts off its requests has no such tail.
    sent, tail = run.sent_rps, run.latency.max
    if run.cut_off:
        tail = 0.0
    if not sent and run.duration_seconds and tail is not None and tail < run.duration_seconds:
        sent = run.sent / (run.duration_seconds - tail)
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
            censored=(slow or run.failed > FAILED_SHARE * run.sent) and not run.burst,
            prompt_tokens_mean=run.prompt_tokens.mean,
            **latencies,
            **copy_fields(run, "output_tokens_per_second", "prefix_hit_ratio"),
        )
    except ValidationError as error:
        problem = problems_of(error, Point)[0]
        raise NotAResultError(run.location, f"does not make a point of a curve: {problem}") from None
    run.remarks = [*_remarks(run, sent), *run.remarks]


def _drop_contradictions(run: BenchmarkRun) -> Iterator[str]:
    """Clear the times of answers that were not streamed, with a remark. Raise NotAResultError for other contradictions."""
    tokens, e2e, clients = run.generation_tokens.mean, run.latency.mean, None if run.burst else run.clients
    ttft, tpot = run.ttft.mean, run.tpot.mean or run.tpot.p50
    if e2e is None and ttft is not None and tpot and tokens:
        e2e = ttft + tpot * max(0.0, tokens - 1)
    contradictions = [*find_contradictions(ttft=ttft, e2e=e2e, tpot=tpot, tokens=tokens)]
    for of in ("p50", "p99"):
        contradictions += find_contradictions(ttft=getattr(run.ttft, of), e2e=getattr(run.latency, of), of=of.upper())
    texts = [entry.text for entry in contradictions if not entry.not_streamed]
    texts += _find_impossible(run, e2e or 0.0)
    steady = None
    # Each request that was cut off may have held a client for the whole run.
    if run.loop == "closed" and not run.failed and run.cut_off < (run.clients or 0.0) / 4:
        steady = run.requests
    if clients and e2e and (text := at_once_contradiction(clients, run.completed_rps, e2e, steady)):
        texts.append(text)
    if texts:
        raise NotAResultError(run.location, f"tells what excludes each other: {'; '.join(texts)}, {CONTRADICTION}")
    if contradictions:
        run.ttft = run.tpot = run.itl = NOTHING
        yield f"{contradictions[0].text}, {CONTRADICTION}; TTFT, TPOT and ITL are left out"


def _find_impossible(run: BenchmarkRun, e2e: float) -> Iterator[str]:
    if not 0.99 * run.request_total <= run.sent <= (run.request_total or run.sent):
        yield f"{run.requests} requests succeeded and {run.sent - run.requests} did not, of {run.request_total}"
    duration, rps, output = run.duration_seconds or math.inf, run.completed_rps, run.output_tokens_per_second
    rows = (
        ("completed rps", rps, run.requests / duration, OF_RATES),
        ("output tokens per second", output, rps * (run.generation_tokens.mean or 0.0), OF_MEANS),
        ("requests at once", run.at_once, rps * e2e, OF_MEANS),
    )
    for what, reported, derived, factor in rows:
        if reported and derived and not 1 / factor <= reported / derived <= factor:
            yield f"{reported:.4g} {what} are reported, {derived:.4g} follow from the other numbers"
    if run.requested_rps and run.requests >= FEWEST_REQUESTS and rps > OF_RATES * run.requested_rps:
        yield f"{rps:.4g} completed rps are above {run.requested_rps:.4g} requested rps"
    known = {"E2E": run.latency, "TTFT": run.ttft, "TPOT": run.tpot, "ITL": run.itl}
    for (what, times), names in product(known.items(), RISING):
        values = [(name, value) for name in names if (value := getattr(times, name)) is not None]
        for (lower, low), (upper, high) in pairwise(values):
            # Tools round each number apart.
            if high < 0.99 * low:
                yield f"{what} {upper} {high:.4g} s is below its {lower} {low:.4g} s"
    longest = max(e2e, *(getattr(times, name) or 0.0 for times in (run.latency, run.ttft) for name in ("p99", "max")))
    if longest > OF_RATES * duration:
        yield f"a request of {longest:.4g} s is longer than the run of {duration:.4g} s"


def _remarks(run: BenchmarkRun, sent: float | None) -> Iterator[str]:
    """Yield what a reader of the point must know. All n requests are below the true P99 with a probability of 0.99^n."""
    if run.burst:
        text = "requests were sent as fast as possible: a queue that drains is no load"
        yield f"{run.sent} {text}, so its latencies are left out"
    elif run.failed > FAILED_SHARE * run.sent:
        yield f"{run.failed} of {run.sent} requests failed: a load that is not carried is no capacity, and is left out of it"
    elif run.point.censored:
        yield f"the generator sent {sent:.4g} of {run.requested_rps:.4g} requested rps: the server is at least this bad"
    elif run.requested_rps and run.completed_rps < GENERATOR_LIMITED * run.requested_rps:
        why = "the file does not show whether the generator was the limit"
        if sent is not None:
            why = "the generator kept up, so there is a backlog, or the run was short"
        yield f"completed {run.completed_rps:.4g} of {run.requested_rps:.4g} requested rps; {why}"
    if any(each.p99 is not None for each in (run.ttft, run.tpot, run.itl, run.latency)) and run.requests < FEW_FOR_P99:
        text = f"P99 of {format_count(run.requests, 'request')} rests on the slowest few"
        yield f"{text}: the true P99 is above all of them with {probability(0.99**run.requests)}"
    if run.loop == "closed" and run.ttft.p99 is not None and (run.clients or 0) > max(1, START_SHARE * run.requests):
        yield f"closed loop: TTFT P99 is that of the start burst, {run.clients:.4g} of {run.requests} requests"
    if run.itl.p99 is not None and (run.itl.p50 or 0) < CHUNKED * (run.tpot.p50 or 0):
        yield "several tokens came in one chunk, so ITL counts gaps of nearly 0 s: compare TPOT"
    if lost := run.failed + run.cut_off:
        yield f"{lost} of {run.sent} requests failed or were under way at the end, and are not in the latencies"
