"""The forecast's metrics by the names that panels use.

Owns nothing but this short list: each is the row of `exporters.names` where that has one. Labels and words here stand in
until it does.
"""

from __future__ import annotations

from exporters import names
from exporters.names import Metric
from rules.families import Kind

_THERE = {metric.name: metric for metric in names.ALL}
_QUANTILE = (names.TIER, "quantile")


def _metric(name: str, labels: tuple[str, ...], text: str) -> Metric:
    full = names.PREFIX + name
    return _THERE.get(full) or Metric(name=full, kind=Kind.GAUGE, labels=labels, text=text)


RECOMMENDED = _metric("recommended_replicas", names.OF_TIER, "Replicas that the forecast asks for")
MINIMUM_WARM = _metric("minimum_warm_replicas", names.OF_TIER, "Fewest replicas to keep warm by the forecast")
FORECAST = _metric("forecast_requests_per_second", _QUANTILE, "Requests per second forecast for one lead ahead")
FORECAST_FOR_NOW = _metric(
    "forecast_for_now_requests_per_second", _QUANTILE, "Requests per second that were forecast for now, a lead ago"
)
FORECAST_LEAD = _metric("forecast_lead_seconds", names.OF_TIER, "How far ahead the forecast looks")
FORECAST_COVERAGE = _metric("forecast_coverage_ratio", names.OF_TIER, "Share of what came that lay within the forecast")
FORECAST_ERROR = _metric("forecast_error_ratio", names.OF_TIER, "Loss of the forecast by that of the naive one")
FORECAST_MADE = _metric("forecast_made_timestamp_seconds", names.OF_TIER, "When the forecast was made")
FORECAST_WEIGHT = _metric("forecast_weight", (names.TIER, "method"), "Weight of each method in the forecast")
COLD_START = _metric("cold_start_measured_seconds", _QUANTILE, "Measured cold starts")
COLD_STARTS_MEASURED = _metric("cold_starts_measured", names.OF_TIER, "Cold starts that this rests on")

ALL: tuple[Metric, ...] = (
    RECOMMENDED,
    MINIMUM_WARM,
    FORECAST,
    FORECAST_FOR_NOW,
    FORECAST_LEAD,
    FORECAST_COVERAGE,
    FORECAST_ERROR,
    FORECAST_MADE,
    FORECAST_WEIGHT,
    COLD_START,
    COLD_STARTS_MEASURED,
)
