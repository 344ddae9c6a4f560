"""Asks a Prometheus-compatible server for the raw samples of a benchmark's span.

Owns how `agent.prometheus.api`'s answers and troubles are told to who imports a benchmark. It knows no metric. No message holds
a password, a token or a query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent.benchmarks.telemetry_merge import span_text
from agent.errors import BenchmarkError, ConfigError
from agent.http_client.error_text import place_of
from agent.prometheus.answers import MatrixSeries
from agent.prometheus.api import StoreApi
from agent.prometheus.options import MOST_BYTES, TIMEOUT_SECONDS, StoreOptions
from agent.prometheus.trouble import StoreError, StoreErrorKind

_LOGIN = "give --bearer-token-file"
_NARROWER = "narrow it with --telemetry-selector"


@dataclass(frozen=True, slots=True)
class BenchmarkSeries:
    """One series of an answer: its name, its other labels, its samples (unix seconds, value) in order of time."""

    name: str
    labels: tuple[tuple[str, str], ...]
    samples: tuple[tuple[float, float], ...]


class PrometheusApi:
    """One server; `ways_in` are fields of StoreOptions. Raises BadBenchmark where its address or a file for it cannot be used;
    no query goes out before `raw`."""

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        most_bytes: int = MOST_BYTES,
        **ways_in: str | None,
    ) -> None:
        given: dict[str, Any] = {"timeout_seconds": timeout_seconds, "most_bytes": most_bytes, **ways_in}
        try:
            options = StoreOptions(url=url, **given)
        except ConfigError as error:
            raise BenchmarkError("--telemetry", error.problems[0].removeprefix("url: ")) from None
        self.place = place_of(url)
        self._api = StoreApi(options, login=_LOGIN)
        try:
            self._api.load()
        except StoreError as trouble:
            raise BenchmarkError(self.place, trouble.text) from trouble

    def raw(self, selector: str, start: float, end: float) -> tuple[BenchmarkSeries, ...]:
        """All samples of the series that match, in (start, end] (unix seconds). Raises BadBenchmark."""
        try:
            found = self._api.query_samples(selector, start, end)
        except StoreError as trouble:
            hint = f": {_NARROWER}" if trouble.kind is StoreErrorKind.TOO_MUCH else ""
            raise BenchmarkError(self.place, f"{trouble.text}{hint}") from trouble
        return tuple(self._named(one) for one in found)

    def close(self) -> None:
        """Ends the kept connection."""
        self._api.close()

    def _named(self, one: MatrixSeries) -> BenchmarkSeries:
        labels = dict(one.labels)
        name = labels.pop("__name__", None)
        if name is None:
            raise BenchmarkError(self.place, "sent a series without a name: is the selector one of series?")
        return BenchmarkSeries(name, tuple(sorted(labels.items())), tuple(zip(one.times, one.values, strict=True)))


def missing_data_text(api: PrometheusApi, what: str, start: float, end: float) -> BenchmarkError:
    """An answer without samples: the span that was asked for shows a mistaken time zone."""
    return BenchmarkError(api.place, f"has no {what} from {span_text(start, end)}: do the times and the selector fit?")
