"""Telemetry of a benchmark, read from a Prometheus-compatible server over the span of each run.

`agent.benchmarks.telemetry_series` sends and decodes queries.
"""

from __future__ import annotations

from typing import Any

from agent.benchmarks import telemetry_series
from agent.benchmarks.points import BenchmarkMeasurement
from agent.benchmarks.telemetry_merge import (
    RecordedReplica,
    TelemetryFields,
    during_run,
    has_traffic,
    span_of,
    span_text,
)
from agent.benchmarks.telemetry_series import (
    PrometheusApi,
    Target,
    engine_selector,
    engines_named,
    group_by_target,
    missing_data_text,
    one_line,
    replica,
)
from agent.errors import BenchmarkError

BEYOND_SECONDS = 120.0
"""Query margin in seconds before and after the run for a scrape on each side. Scrape intervals are shorter."""

LONGEST_SECONDS = 7 * 86400.0
"""Longest plausible load in seconds. A larger span is not in seconds."""

MOST_NAMED = 8

NO_TIME = "the result file does not tell when this run was: nothing can be taken from telemetry"


class PrometheusTelemetry:
    """Telemetry of one server. `selector` holds label matchers of the benchmarked replica."""

    def __init__(self, api: PrometheusApi, engine: str | None = None, selector: str | None = None) -> None:
        self._api = api
        self._engines = engines_named(engine)
        self._selector = one_line(selector, api.place)

    def read_run(self, measured: BenchmarkMeasurement) -> TelemetryFields:
        """Return the telemetry of the run. Raise BenchmarkError without useful data, or if several replicas served."""
        span = span_of(measured)
        if span is None:
            return TelemetryFields(remarks=(NO_TIME,))
        start, end = span
        if end - start > LONGEST_SECONDS:
            return TelemetryFields(
                remarks=(f"this run lasted {(end - start) / 86400:.0f} days: nothing was asked of it",)
            )
        target, one = self._served(start, end)
        fields = during_run(measured, one, start, end, self._api.place)
        if not fields.values:
            return fields
        asked = telemetry_series.gpu_selector(self._selector)
        series = self._api.raw(asked, start - BEYOND_SECONDS, end + BEYOND_SECONDS)
        gpus = telemetry_series.mean_gpu_utilization(series, target, bool(self._selector), start, end)
        return TelemetryFields(
            values={**fields.values, **gpus.values},
            setup=fields.setup,
            gpu_utilization_kind=gpus.gpu_utilization_kind,
            remarks=(*fields.remarks, *gpus.remarks),
        )

    def close(self) -> None:
        self._api.close()

    def _served(self, start: float, end: float) -> tuple[Target, RecordedReplica]:
        asked = engine_selector(self._engines, self._selector)
        series = self._api.raw(asked, start - BEYOND_SECONDS, end + BEYOND_SECONDS)
        replicas = {
            target: one
            for target, group in group_by_target(series).items()
            if (one := replica(target, group, self._engines)) is not None
        }
        if not replicas:
            raise missing_data_text(self._api, "samples of an engine", start, end)
        busy = [target for target, one in replicas.items() if has_traffic(one, start, end)]
        if len(busy) > 1:
            names = " ".join(replicas[target].name for target in busy[:MOST_NAMED])
            several = f"{len(busy)} replicas served requests in {span_text(start, end)}: {names}"
            raise BenchmarkError(self._api.place, f"{several}: name the benchmarked one with --telemetry-selector")
        chosen = (*busy, *replicas)[0]
        return chosen, replicas[chosen]


def open_telemetry(
    url: str, *, engine: str | None = None, selector: str | None = None, **ways_in: Any
) -> PrometheusTelemetry:
    """Return the telemetry of the server at `url`. Raise BenchmarkError with the address if it is unusable.

    `engine` overrides detection of the engine. `selector` are label matchers of the benchmarked replica
    (`{instance="10.0.0.5:8000"}`). `ways_in` are fields of `agent.prometheus.options.StoreOptions`.
    """
    return PrometheusTelemetry(PrometheusApi(url, **ways_in), engine, selector)
