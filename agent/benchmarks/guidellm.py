"""Reader of GuideLLM's report, JSON or YAML: the shape of 0.3 and of `metadata.version` 2 (0.8).

Keys ending in `_ms` are milliseconds; `request_latency` is in seconds. Each entry of `benchmarks` is a load.
`inter_token_latency_ms` is (last - first) / (n - 1) of a request, which is TPOT. The report has no gap between two
tokens. `time_per_output_token_ms` changed its meaning between the versions (PEERS 3.2, item 5a). Requests per second
are the mean: their percentiles are of single intervals (item 4). Rules for all tools are in `agent.benchmarks.points`.
"""

from __future__ import annotations

from dataclasses import replace

from agent.benchmarks import points
from agent.benchmarks.points import BenchmarkMeasurement, BenchmarkRun, LengthQuantiles, Loads, Loop, build_measurement
from agent.benchmarks.typed_fields import ResultFields
from agent.errors import NotAResultError

NAME = "guidellm"

STRATEGIES: dict[str, Loop] = {
    "constant": "open",
    "poisson": "open",
    "synchronous": "closed",
    "concurrent": "closed",
    "throughput": "closed",
}
"""Loop per strategy (guidellm/scheduler/strategies.py). Throughput without a limit sends all requests at once."""

STRATEGY_PLACES = (("config", "strategy"), ("args", "strategy"))


def recognises(part: ResultFields) -> bool:
    """Return whether the entries of `benchmarks`, or the metadata, are marked as GuideLLM's."""
    entries, about = part.data.get("benchmarks"), part.data.get("metadata")
    if isinstance(about, dict) and "guidellm_version" in about:
        return isinstance(entries, list)
    first = entries[0] if isinstance(entries, list) and entries else None
    metrics = first.get("metrics") if isinstance(first, dict) else None
    return isinstance(metrics, dict) and "requests_per_second" in metrics


def read(part: ResultFields) -> Loads:
    """Return all benchmarks of the report, and an error for each whose numbers cannot be.

    Raise BenchmarkError for a failed or cancelled one or other impossible values.
    """
    entries = [(entry, _load(entry)[0]) for entry in part.parts("benchmarks")]
    any_rate = any(loop == "open" for _, loop in entries)
    return tuple(_measurement(entry, beside_rates=any_rate and loop == "closed") for entry, loop in entries)


def _measurement(entry: ResultFields, *, beside_rates: bool) -> BenchmarkMeasurement | NotAResultError:
    try:
        run = _run(entry)
        return build_measurement(entry, NAME, _beside_rates(run) if beside_rates else run)
    except NotAResultError as error:
        return error


def _beside_rates(run: BenchmarkRun) -> BenchmarkRun:
    """Clear the loop of a closed-loop run in a report that also has open loops.

    GuideLLM's sweep begins with one client and then all requests at once, to find the rates between. One client has no
    queue and is the lowest load. More clients are a burst. Neither makes the curve a closed loop.
    """
    one = run.clients == 1
    said = (points.BESIDE_RATES,) if one else ()
    return replace(run, loop=None, burst=not one, remarks=(*run.remarks, *said))


def _run(entry: ResultFields) -> BenchmarkRun:
    """Return one benchmark. Requests in flight at the end are `incomplete`; too many are refused in `points`."""
    totals = (
        ("metrics", "request_totals") if entry.get("metrics", "request_totals") is not None else ("request_totals",)
    )
    loop, rate, clients = _load(entry)
    started_at, ended_at = entry.positive_number("start_time"), entry.positive_number("end_time")
    duration = entry.positive_number("duration")
    if duration is None and started_at and ended_at and ended_at > started_at:
        duration = ended_at - started_at
    return BenchmarkRun(
        completed_rps=entry.needed("metrics", "requests_per_second", "successful", "mean"),
        requests=entry.needed_count(*totals, "successful"),
        failed=entry.count(*totals, "errored") or 0,
        cut_off=entry.count(*totals, "incomplete") or 0,
        loop=loop,
        burst=loop == "closed" and clients is None,
        clients=clients,
        requested_rps=rate,
        duration_seconds=duration,
        latency_mean_seconds=_statistic(entry, "request_latency", "mean"),
        latency_max_seconds=_statistic(entry, "request_latency", "max"),
        ttft_mean_seconds=_seconds(entry, "time_to_first_token_ms", "mean"),
        ttft_p50_seconds=_seconds(entry, "time_to_first_token_ms", "median"),
        ttft_p99_seconds=_seconds(entry, "time_to_first_token_ms", "percentiles", "p99"),
        tpot_mean_seconds=_seconds(entry, "inter_token_latency_ms", "mean"),
        tpot_p50_seconds=_seconds(entry, "inter_token_latency_ms", "median"),
        tpot_p99_seconds=_seconds(entry, "inter_token_latency_ms", "percentiles", "p99"),
        e2e_p99_seconds=_statistic(entry, "request_latency", "percentiles", "p99"),
        output_tokens_per_second=_statistic(entry, "output_tokens_per_second", "mean"),
        started_at=started_at,
        ended_at=ended_at,
        model=entry.text("config", "backend", "model") or entry.text("worker", "backend_model"),
        prompt_tokens=_lengths(entry, "prompt_token_count"),
        generation_tokens=_lengths(entry, "output_token_count"),
        remarks=_said(entry, loop),
    )


def _load(entry: ResultFields) -> tuple[Loop | None, float | None, float | None]:
    """Return loop, requested rps and clients of a benchmark. The loop is None for an unknown strategy."""
    strategy = _strategy(entry)
    if strategy is None:
        return None, None, None
    kind = _kind(strategy)
    loop = STRATEGIES.get(kind)
    if loop == "open":
        return loop, strategy.needed("rate"), None
    clients = {
        "synchronous": 1.0,
        "concurrent": strategy.positive_number("streams"),
        "throughput": strategy.positive_number("max_concurrency"),
    }
    return loop, None, clients.get(kind)


def _strategy(entry: ResultFields) -> ResultFields | None:
    return next((found for place in STRATEGY_PLACES if (found := entry.part(*place)) is not None), None)


def _kind(strategy: ResultFields) -> str:
    return strategy.text("type_") or strategy.text("kind")


def _said(entry: ResultFields, loop: Loop | None) -> tuple[str, ...]:
    strategy = _strategy(entry)
    if loop is not None:
        return ()
    kind = _kind(strategy) if strategy else ""
    return (points.TRACE.format(kind=f"of strategy {kind[:40]}") if kind else points.NO_LOAD,)


def _statistic(entry: ResultFields, metric: str, *keys: str) -> float | None:
    return entry.positive_number("metrics", metric, "successful", *keys)


def _seconds(entry: ResultFields, metric: str, *keys: str) -> float | None:
    value = _statistic(entry, metric, *keys)
    return None if value is None else value / 1000


def _lengths(entry: ResultFields, metric: str) -> LengthQuantiles:
    return LengthQuantiles(
        mean=_statistic(entry, metric, "mean"),
        p50=_statistic(entry, metric, "median"),
        p95=_statistic(entry, metric, "percentiles", "p95"),
        p99=_statistic(entry, metric, "percentiles", "p99"),
    )
