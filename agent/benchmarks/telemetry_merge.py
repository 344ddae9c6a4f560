"""Telemetry fields of a benchmark point, and checks that a replica's windows hold the traffic of this run.

The client's TTFT is compared with the engine's histogram. The engine measures from arrival to the first generated token,
the client to the first chunk it reads.
A further field of a point is a row of FIELDS.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from agent.benchmarks.points import BenchmarkMeasurement, Setup
from agent.benchmarks.typed_fields import CONTRADICTION
from rules.engines.table import EngineTable
from rules.telemetry import histograms, windows
from rules.telemetry.gauges import STEP_GAUGES
from rules.telemetry.gpu_windows import GPU_UTILIZATION_KINDS, gpu_utilization
from rules.telemetry.histograms import Histogram
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading
from rules.telemetry.windows import UNKNOWN_BETWEEN_SCRAPES, Window
from rules.telemetry.wording import number, spread

TTFT = "ttft_seconds"

FIELDS = ("prefix_hit_ratio", "eviction_rate", "speculative_acceptance", "kv_utilization")
"""Point fields with a signal of the same name and meaning. GPU utilisation comes from elsewhere."""

MEANS = frozenset({"kv_utilization"})
"""Fields that are means over the run. They need FULL_COVERAGE of it."""

FINISHED = "requests_finished"

GENERATED = "generation_tokens"

GAUGES = {
    "kv_utilization": "kv_utilization",
    "prefix_hit_ratio": "prefix_hit_gauge",
    "speculative_acceptance": "spec_accept_length",
}
"""Gauge per field, for an engine without counters of it."""

FAMILIES = frozenset(
    {
        *(family for name in FIELDS for family in BY_NAME[name].families),
        *STEP_GAUGES,
        *GAUGES.values(),
        "spec_accepted_at_position",
        "spec_steps",
        "engine_steps",
        FINISHED,
        GENERATED,
        TTFT,
    }
)
"""Families a source must provide for these fields and their checks."""

SAME_REQUESTS = 0.02
"""Share of extra or missing requests explained by the tool's warm-up. A larger difference adds a remark."""

SAME_TOKENS = 0.01
"""Share of differing tokens above which a remark is added. vLLM's bench and engine agree to the token."""

OTHER_TRAFFIC = 0.2
"""Share of differing requests above which the engine counted other traffic."""

GPU_KINDS = tuple(GPU_UTILIZATION_KINDS)
"""Kinds in order of preference: hardware counters before a poll of "any kernel ran"."""

QUANTILES = {"ttft_p50_seconds": ("P50", 0.5), "ttft_p99_seconds": ("P99", 0.99)}
"""Compared point fields, with their names and quantiles (0-1)."""

CLIENT_RATIO, CLIENT_SECONDS = 1.1, 0.02
"""Tolerance of the client above the engine: 10 % and 20 ms. The recordings' clients are within it for 95 % of their
windows (tests/recordings). The acceptance check of replay against their requests.csv uses the same numbers."""

ENGINE_RATIO = 0.98
"""Ratio to the engine's lower bound below which a client's TTFT is too early, by the same check."""

PAGE = "docs/what-the-engine-cannot-see.md"

LATER = f"likely --stream-interval, a reasoning parser, or time in the client, the front end or the network ({PAGE})"

EARLIER = f"likely a first chunk without a token, or telemetry of other requests ({PAGE})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryFields:
    """Telemetry values by field of `rules.plan.schema.Point`. `remarks` explain missing fields. `setup` is what the source
    tells of the engine's configuration."""

    values: Mapping[str, float] = field(default_factory=dict)
    setup: Setup | None = None
    gpu_utilization_kind: str | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTelemetry:
    """Engine window of one run. `edge_seconds` is the largest distance between its ends and those of the run."""

    window: Window
    engine: EngineTable | None
    edge_seconds: float = 0.0


def span_of(measured: BenchmarkMeasurement) -> tuple[float, float] | None:
    """Return start and end of the run (unix seconds), or None if the file has no valid times."""
    start, end = measured.started_at, measured.ended_at
    if start is None or end is None or not (math.isfinite(start) and math.isfinite(end)) or end <= start:
        return None
    return start, end


def span_text(start: float, end: float) -> str:
    """Return a span in UTC for messages."""
    try:
        begin, finish = datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC)
    except (OverflowError, ValueError, OSError):
        return f"unix seconds {start:g} to {end:g}"
    until = f"{finish:%H:%M:%S}" if begin.date() == finish.date() else f"{finish:%Y-%m-%d %H:%M:%S}"
    return f"{begin:%Y-%m-%d %H:%M:%S} to {until} UTC"


def is_inside_run(window: Window, start: float, end: float) -> bool:
    """Return whether the middle of the window lies in the run."""
    return start <= (window.start + window.end) / 2 <= end


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReplica:
    """Replica with its windows in time order. `name` is its name for `--telemetry-selector`."""

    name: str
    engine: EngineTable
    windows: tuple[Window, ...]
    setup: Setup


def covered_share(parts: tuple[Window, ...], start: float, end: float) -> float:
    """Return the share (0-1) of the span that windows with pages at both ends cover."""
    overlaps = (min(w.end, end) - max(w.start, start) for w in parts if w.covered_seconds > 0)
    return min(1.0, math.fsum(overlap for overlap in overlaps if overlap > 0) / (end - start))


def has_traffic(replica: RecordedReplica, start: float, end: float) -> bool:
    """Return whether the replica finished or generated anything in the run."""
    return any(
        is_inside_run(w, start, end) and any(w.counters.get(f, 0.0) > 0 for f in (FINISHED, GENERATED))
        for w in replica.windows
    )


def during_run(
    measured: BenchmarkMeasurement, replica: RecordedReplica, start: float, end: float, whose: str
) -> TelemetryFields:
    """Return the telemetry of one replica from start to end (unix seconds). `whose` names the source."""
    share = covered_share(replica.windows, start, end)
    parts = tuple(w for w in replica.windows if is_inside_run(w, start, end))
    if share < FULL_COVERAGE or not parts:
        text = f"{whose} covers {share:.0%} of this run ({span_text(start, end)}): nothing was taken from it"
        if seen := replica.windows:
            text += f"; it spans {span_text(seen[0].start, seen[-1].end)}"
        return TelemetryFields(remarks=(text,))
    run = RunTelemetry(
        window=windows.sum_windows(parts), engine=replica.engine, edge_seconds=max(w.end - w.start for w in parts)
    )
    fields = extract_fields(measured, run)
    fields = replace(fields, setup=replica.setup) if fields.values else fields
    if run.window.counters.get("restarts"):
        return replace(fields, remarks=("the engine restarted during this run", *fields.remarks))
    return fields


def extract_fields(measured: BenchmarkMeasurement, seen: RunTelemetry) -> TelemetryFields:
    """Return the fields from this window; no fields if it has other traffic."""
    usable, remarks = _same_requests(measured, seen)
    if not usable:
        return TelemetryFields(remarks=remarks)
    values: dict[str, float] = {}
    told = [*remarks, *_other_tokens(measured, seen), *_other_first_tokens(measured, seen)]
    for name in FIELDS:
        result = _of_the_run(name, seen)
        if isinstance(result, float):
            values[name] = result
        else:
            told.append(f"{name}: {result}")
    return TelemetryFields(values=values, remarks=tuple(told))


def extract_gpu_utilization(window: Window) -> tuple[str, float] | None:
    """Return kind and mean (0-1) of the GPU utilisation in a window, for the best kind present."""
    for kind in GPU_KINDS:
        value = gpu_utilization(window, kind)
        if isinstance(value, Reading) and value.value is not None and 0 <= value.value <= 1:
            return kind, value.value
    return None


def _same_requests(measured: BenchmarkMeasurement, seen: RunTelemetry) -> tuple[bool, tuple[str, ...]]:
    """Return whether the window belongs to this run, judged by the finished requests."""
    asked, finished = measured.point.requests, seen.window.counters.get(FINISHED)
    if finished == 0:
        return False, ("the engine finished no request in this run: nothing was taken from its telemetry",)
    if asked is None or finished is None:
        whose = "the result file" if asked is None else "the engine"
        return True, (f"{whose} does not tell how many requests it counted: other traffic would not show",)
    differs = abs(finished - asked)
    if differs <= SAME_REQUESTS * asked:
        return True, ()
    text = f"the engine finished {finished:.0f} requests in this run, the result file has {asked}"
    if differs > OTHER_TRAFFIC * asked + _edge_requests(seen):
        return False, (f"{text}: its telemetry is not of this run alone, and nothing was taken from it",)
    return True, (f"{text} (warm-up requests, or scrapes that do not meet its ends)",)


def _other_tokens(measured: BenchmarkMeasurement, seen: RunTelemetry) -> tuple[str, ...]:
    """Return a remark if the token counts differ: it may be another run with as many requests.

    The window is not refused: some tools count with their own tokenizer.
    """
    mean, asked, finished = measured.generation_tokens.mean, measured.point.requests, seen.window.counters.get(FINISHED)
    generated = seen.window.counters.get(GENERATED)
    # With different requests the tokens differ anyway.
    if mean is None or generated is None or asked is None or finished not in (None, asked):
        return ()
    if abs(generated - mean * asked) <= SAME_TOKENS * mean * asked:
        return ()
    text = f"the engine generated {generated:.0f} tokens in this run, the result file has {mean * asked:.0f}"
    return (f"{text}: make sure that its telemetry is of this run",)


def _other_first_tokens(measured: BenchmarkMeasurement, seen: RunTelemetry) -> tuple[str, ...]:
    """Return remarks if the client's TTFT is outside the engine's histogram. Skip a histogram without full coverage."""
    window = seen.window
    if TTFT not in window.histograms or window.seconds_of(TTFT) < FULL_COVERAGE * window.due_seconds:
        return ()
    return disagreements(measured, window.histograms[TTFT], _edge_requests(seen))


def _edge_requests(seen: RunTelemetry) -> float:
    """Return the requests that may have ended between an end of the run and its nearest scrape."""
    finished = seen.window.counters.get(FINISHED, 0.0)
    return finished * seen.edge_seconds / seen.window.span if seen.window.span > 0 else 0.0


def _of_the_run(name: str, seen: RunTelemetry) -> float | str:
    """Return the value of a field, or the reason for its absence."""
    value = read(BY_NAME[name], seen.window)
    if isinstance(value, Missing):
        gauge = GAUGES.get(name, "")
        if seen.window.gaps.get(gauge) in UNKNOWN_BETWEEN_SCRAPES and not value.text:
            return f"is a gauge of this engine, and {_WHY_UNTOLD[seen.window.gaps[gauge]]}"
        if value.gap is Gap.CONTRADICTORY:
            told = value.text.removesuffix(" cannot be") or "the engine counts more hits than lookups"
            return f"{told}, {CONTRADICTION}; left out"
        return _why(name, value, seen.engine)
    if value.value is None:
        return "only bounds are known"
    if name != "eviction_rate" and not 0 <= value.value <= 1:
        return f"the engine's counters give {value.value:.0%}, {CONTRADICTION}; left out"
    return value.value if name not in MEANS else _whole(name, value, seen.window)


def _whole(name: str, value: Reading, window: Window) -> float | str:
    gauge = window.gauges[BY_NAME[name].families[0]]
    share = gauge.seconds / window.due_seconds
    if value.value is None or share < FULL_COVERAGE:
        return f"was seen in {share:.0%} of the run only"
    return value.value


_WHY_UNTOLD = {
    Gap.NOT_SCRAPED: "scrapes too far apart tell no mean over the run",
    Gap.CONTRADICTORY: "more requests finished in the run than it shows",
    Gap.IMPOSSIBLE: "the engine tells numbers that cannot be",
}


def _why(name: str, value: Missing, engine: EngineTable | None) -> str:
    if value.text:
        return value.text
    if value.gap is Gap.NO_TRAFFIC:
        return "nothing was counted in this run"
    if value.gap is not Gap.NOT_EXPOSED or engine is None:
        return value.gap.value.replace("_", " ")
    told = dict(engine.not_exposed)
    why = next((told[family] for family in BY_NAME[name].families if family in told), "")
    return why or f"{engine.title} does not expose it, or it is not switched on"


class Bounds(NamedTuple):
    """Bounds of a quantile in seconds. `high` is infinite if the histogram does not bound it."""

    low: float
    high: float


def disagreements(
    measured: BenchmarkMeasurement, parts: tuple[Histogram, ...], edge_requests: float
) -> tuple[str, ...]:
    """Return a sentence for each direction in which the client's TTFT lies outside the engine's bounds.

    `parts` is the engine's TTFT histogram (seconds) of the run. Up to `edge_requests` may be extra or missing, because
    scrapes do not meet the ends of the run. Return nothing if either side lacks TTFT or a request count.
    """
    compared = tuple(_compared(measured, parts, edge_requests))
    later = [text for text, client, bounds in compared if client > bounds.high * CLIENT_RATIO + CLIENT_SECONDS]
    earlier = [text for text, client, bounds in compared if client < bounds.low * ENGINE_RATIO]
    return tuple(f"{', '.join(texts)}: {why}" for texts, why in ((later, LATER), (earlier, EARLIER)) if texts)


def _compared(
    measured: BenchmarkMeasurement, parts: tuple[Histogram, ...], edge_requests: float
) -> Iterator[tuple[str, float, Bounds]]:
    """Yield for each quantile of the client: the sentence, the client's value (seconds), the engine's bounds."""
    requests = measured.point.requests
    for key, (name, q) in QUANTILES.items():
        client = getattr(measured.point, key)
        if client is None or not requests:
            continue
        bounds = _bounds(parts, q, requests, edge_requests + _start_burst(measured))
        if bounds is not None:
            high = None if math.isinf(bounds.high) else bounds.high
            engine = spread(bounds.low, high, "seconds")
            yield f"TTFT {name} is {number(client, 'seconds')} at the client and {engine} in the engine", client, bounds


def _start_burst(measured: BenchmarkMeasurement) -> float:
    """Return the requests in the start burst of a closed loop: some tools exclude them from the TTFT."""
    return (measured.point.concurrency or 0.0) if measured.loop == "closed" else 0.0


def _bounds(parts: tuple[Histogram, ...], q: float, requests: int, others: float) -> Bounds | None:
    """Return the bounds of the client's quantile in the engine's histogram.

    Tools interpolate between the two requests around q (n - 1) (Hyndman and Fan 1996, type 7, numpy's default). Others
    take rank ceil(q n). The bounds include all. A request counted by one side only moves each rank by at most one.
    """
    seen = math.fsum(part.n for part in parts)
    if seen <= 0:
        return None
    others += abs(seen - requests)
    first = math.floor(q * (requests - 1)) + 1 - others
    last = max(math.ceil(q * (requests - 1)) + 1, math.ceil(round(q * requests, 6))) + others
    low = histograms.quantile(parts, max(1.0, first) / seen) if first <= seen else None
    high = histograms.quantile(parts, last / seen) if last <= seen else None
    return Bounds(low.low if low else 0.0, math.inf if high is None or high.high is None else high.high)
