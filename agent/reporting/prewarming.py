"""What pre-warming was worth to each tier, for the report: simulated on the history's own weeks.

Owns the way from what the forecast found to the report's record. The numbers' libraries are loaded where a forecast is made, and
not where forecasting is switched off.
"""

from __future__ import annotations

from agent.config.load import LoadedConfig
from agent.config.views import build_tier_contexts
from agent.errors import SizewatchError
from agent.forecasting.messages import ForecastResponse
from exporters.report.inputs import Prewarming


def prewarming(loaded: LoadedConfig, now: float) -> dict[str, Prewarming]:
    """By tier, as of `now` (unix seconds); a tier of which nothing could be found is left out, and the report says why."""
    if not loaded.config.forecast.enabled:
        return {}
    from agent.forecasting.prewarm_result import PlanOverrides, prewarm_from_history

    nothing_said = PlanOverrides(usable_rps=None, start_seconds=None)
    found: dict[str, Prewarming] = {}
    for tier in build_tier_contexts(loaded):
        try:
            told = prewarming_from_response(prewarm_from_history(loaded, tier, nothing_said, now))
        except SizewatchError:
            # What is wrong with the history is the report's own first question; it says so there.
            continue
        if told is not None:
            found[tier] = told
    return found


def prewarming_from_response(answer: ForecastResponse) -> Prewarming | None:
    """None where neither a forecast nor a comparison could be made."""
    worth, told = answer.prewarm.worth, answer.forecast
    if worth is None and told is None:
        return None
    projection = told.projection if told is not None else None
    counted = projection is not None and projection.forecasts > 0
    return Prewarming(
        worth=worth,
        method=projection.method if projection is not None else "",
        naive=projection.naive if projection is not None else "",
        covered_ratio=projection.covered / projection.forecasts if projection is not None and counted else None,
        error_ratio=projection.error_ratio if projection is not None else None,
        forecasts=projection.forecasts if projection is not None else 0,
    )
