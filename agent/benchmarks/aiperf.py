"""Reader of AIPerf's `profile_export_aiperf.json` (ai-dynamo/aiperf, export schema 1.0 to 1.5), also for GenAI-Perf.

Every metric is an object with a `unit`. An unknown unit is refused. Rules for all tools are in
`agent.benchmarks.points`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from agent.benchmarks import points
from agent.benchmarks.points import BenchmarkMeasurement, BenchmarkRun, LengthQuantiles, Loop, build_measurement
from agent.benchmarks.typed_fields import ResultFields
from exporters.render.text import quote_external_text

NAME = "aiperf"

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
"""Seconds per unit of time (aiperf/common/enums/metric_enums.py)."""

RATES = {
    "request_throughput": ("requests/sec", "requests/s", "req/s"),
    "output_token_throughput": ("tokens/sec", "tokens/s"),
}

PATTERNS: dict[str, Loop | None] = {
    "concurrency": "closed",
    "constant": "open",
    "poisson": "open",
    "gamma": "open",
    "fixed_schedule": None,
    "user_centric": None,
}
"""Loop per arrival pattern (`input_config.phases[].type`, newer files). None: no steady rate of single requests."""

METRICS = ("request_throughput", "request_latency")


def recognises(part: ResultFields) -> bool:
    """Return whether the metrics are objects with a unit, at the top or under `records` (the first releases)."""
    records = part.data.get("records")
    blocks = [place.get(name) for place in (part.data, records) if isinstance(place, dict) for name in METRICS]
    return any(isinstance(block, dict) and "unit" in block for block in blocks)


def read(part: ResultFields) -> tuple[BenchmarkMeasurement, ...]:
    """Return the load of one run. Raise BenchmarkError for a cancelled or failed run, an unknown unit or a bad value.

    `inter_token_latency` is (last - first) / (n - 1) of a request, which is TPOT. `inter_chunk_latency` is per gap
    (PEERS 3.2, item 5a). Failures are `error_request_count`, or else the sum of `error_summary[].count`. That list has
    an entry per kind of error, not per request (item 6).
    """
    if isinstance(records := part.data.get("records"), dict):
        part = replace(part, data={**part.data, **records})
    if part.flag("was_cancelled"):
        raise part.bad("is of a run that was cancelled")
    loop, rate, clients, said = _load(part)
    count, throughput = part.count("request_count", "avg"), _rate(part, "request_throughput")
    if throughput is None:
        raise part.bad("is missing", "request_throughput")
    run = BenchmarkRun(
        completed_rps=throughput,
        requests=part.needed_count("request_latency", "count") if count is None else count,
        failed=_failed(part),
        loop=loop,
        clients=clients,
        requested_rps=rate,
        duration_seconds=_seconds(part, "benchmark_duration", "avg"),
        latency_mean_seconds=_seconds(part, "request_latency", "avg"),
        latency_max_seconds=_seconds(part, "request_latency", "max"),
        ttft_mean_seconds=_seconds(part, "time_to_first_token", "avg"),
        ttft_p50_seconds=_seconds(part, "time_to_first_token", "p50"),
        ttft_p99_seconds=_seconds(part, "time_to_first_token", "p99"),
        tpot_mean_seconds=_seconds(part, "inter_token_latency", "avg"),
        tpot_p50_seconds=_seconds(part, "inter_token_latency", "p50"),
        tpot_p99_seconds=_seconds(part, "inter_token_latency", "p99"),
        itl_p50_seconds=_seconds(part, "inter_chunk_latency", "p50"),
        itl_p99_seconds=_seconds(part, "inter_chunk_latency", "p99"),
        e2e_p99_seconds=_seconds(part, "request_latency", "p99"),
        output_tokens_per_second=_rate(part, "output_token_throughput"),
        started_at=_time(part, "start_time"),
        ended_at=_time(part, "end_time"),
        model=_model(part),
        prompt_tokens=_lengths(part, "input_sequence_length"),
        generation_tokens=_lengths(part, "output_sequence_length"),
        remarks=said,
    )
    return (build_measurement(part, NAME, run),)


def _seconds(part: ResultFields, metric: str, statistic: str) -> float | None:
    return _in_units(part, metric, statistic, UNITS)


def _rate(part: ResultFields, metric: str) -> float | None:
    return _in_units(part, metric, "avg", dict.fromkeys(RATES[metric], 1.0))


def _in_units(part: ResultFields, metric: str, statistic: str, units: Mapping[str, float]) -> float | None:
    """Return a value in the base unit. Raise BenchmarkError for a unit without a factor in `units`."""
    value = part.positive_number(metric, statistic)
    if value is None:
        return None
    unit = part.text(metric, "unit")
    if unit not in units:
        raise part.bad(f"has the unit '{quote_external_text(unit, 20)}', none of {', '.join(units)}", metric)
    return value * units[unit]


def _failed(part: ResultFields) -> int:
    failed = part.count("error_request_count", "avg")
    return sum(kind.count("count") or 0 for kind in part.parts("error_summary")) if failed is None else failed


def _load(part: ResultFields) -> tuple[Loop | None, float | None, float | None, tuple[str, ...]]:
    """Return loop, requested rps, clients and remarks. With a rate, concurrency is only its cap.

    The load is in `input_config.phases`, `input_config.loadgen` (0.x) or `run_info.variation_values` (sweep). GenAI-Perf
    has it in `input_config` (older) or its `perf_analyzer.stimulus`. Without any of them `loop` is None.
    """
    phase = _profiling(part)
    pattern = phase.text("type") if phase else ""
    if pattern in PATTERNS and PATTERNS[pattern] is None:
        return None, None, None, (points.TRACE.format(kind=f"of pattern {pattern}"),)
    swept = part.part("run_info", "variation_values")
    loadgen = part.part("input_config", "loadgen")
    ways = (
        (phase, "rate", "concurrency"),
        (loadgen, "request_rate", "concurrency"),
        (part.part("input_config", "perf_analyzer", "stimulus"), "request_rate", "concurrency"),
        (part.part("input_config"), "request_rate", "concurrency"),
        (swept, "phases.profiling.rate", "phases.profiling.concurrency"),
        (swept, "phases.profiling.request_rate", "phases.profiling.concurrency"),
    )
    rates = [where.positive_number(rate) for where, rate, _ in ways if where]
    clients = [where.positive_number(clients) for where, _, clients in ways if where]
    rate, limit = (next((value for value in values if value), None) for values in (rates, clients))
    if rate:
        return "open", rate, None, ()
    return ("closed", None, limit, ()) if limit else (None, None, None, (points.NO_LOAD,))


def _profiling(part: ResultFields) -> ResultFields | None:
    """Return the measured phase, from a list or by its name. Warm-up phases are skipped."""
    config = part.part("input_config")
    if config and isinstance(config.get("phases"), dict):
        return config.part("phases", "profiling")
    phases = tuple(config.parts("phases")) if config else ()
    return next((phase for phase in phases if "profiling" in (phase.text("name"), phase.text("kind"))), None)


def _time(part: ResultFields, key: str) -> float | None:
    """Return unix seconds. A time without a zone is UTC (docs/reference/json-export-schema.md)."""
    text = part.text(key)
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
        found = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise part.bad("must be a time such as 2026-06-17T16:08:57", key) from None
    if found < 0:
        raise part.bad("must be a time after 1970, such as 2026-06-17T16:08:57", key)
    return found


def _model(part: ResultFields) -> str:
    """Return the model name if there is exactly one. An unknown shape returns "": the name is not a measurement."""
    config: Any = part.get("input_config")
    endpoint = config.get("endpoint") if isinstance(config, dict) else None
    places = [place for place in (endpoint, config) if isinstance(place, dict)]
    named = (place.get(key) for place in places for key in ("model_names", "model"))
    lists = (names if isinstance(names, list) else [names] for names in named)
    return next((names[0] for names in lists if len(names) == 1 and isinstance(names[0], str)), "")


def _lengths(part: ResultFields, metric: str) -> LengthQuantiles:
    mean, p50, p95, p99 = (part.positive_number(metric, statistic) for statistic in ("avg", "p50", "p95", "p99"))
    return LengthQuantiles(mean=mean, p50=p50, p95=p95, p99=p99)
