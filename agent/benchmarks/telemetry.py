"""Opener of benchmark telemetry from a recording, a folder of saved pages, or a Prometheus server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent.benchmarks.telemetry_merge import Telemetry
from agent.benchmarks.telemetry_pages import SavedPages, page_files
from agent.benchmarks.telemetry_prometheus import PrometheusTelemetry
from agent.benchmarks.telemetry_recording import RecordedTelemetry
from agent.benchmarks.telemetry_series import PrometheusApi
from agent.errors import BenchmarkError


def open_telemetry(
    place: str,
    *,
    engine: str | None = None,
    selector: str | None = None,
    **ways_in: Any,
) -> Telemetry:
    """Return the telemetry at `place`. Raise BenchmarkError with the place if it is unusable.

    `engine` overrides detection of the engine. `selector` names the benchmarked replica: label matchers for a server
    (`{instance="10.0.0.5:8000"}`), or the replica's name for a recording. `ways_in` are fields of
    `agent.prometheus.query.StoreOptions` for a server.
    """
    if not place.strip():
        raise BenchmarkError(
            "--telemetry", "is empty: give a folder, a recording or the address of a Prometheus server"
        )
    if "://" in place:
        return PrometheusTelemetry(PrometheusApi(place, **ways_in), engine, selector)
    folder = Path(place)
    try:
        if (folder / "recording.yaml").is_file():
            return RecordedTelemetry(folder, engine, selector)
        if not folder.is_dir():
            text = "is neither a folder of saved pages, nor a recording, nor the http(s) address of a Prometheus server"
            raise BenchmarkError(place, text)
        files = page_files(folder)
    except (OSError, ValueError) as error:
        raise BenchmarkError(place, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not files:
        text = "has neither recording.yaml nor pages saved before and after the runs (metrics_before.prom, metrics_after_TAG.prom)"
        raise BenchmarkError(place, text)
    if selector is not None:
        raise BenchmarkError(place, "is a folder of saved pages, which --telemetry-selector cannot choose from")
    return SavedPages(folder, files, engine)
