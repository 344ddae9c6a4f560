"""Command `sizewatch forecast`: expected demand, its uncertainty, and the accuracy of the last day.

The forecast libraries are imported on demand.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import click

from agent.cli.arguments import CONFIG, FINE, FORMAT, PATH, duration, tier_option
from agent.worker.process import ONE_THREAD

DAY_SECONDS = 86_400.0


def parameters() -> tuple[click.Parameter, ...]:
    ahead = click.Option(
        ["--horizon"], type=horizon, default="15m", metavar="15m", help="how far ahead, at most 24h (default: 15m)"
    )
    return tier_option("whose demand; default the only one"), *HISTORY, ahead, *FORMAT


HISTORY = (
    click.Option(
        ["--history"],
        type=PATH,
        metavar="CSV",
        help="timestamp,requests[,...], also gzipped; without it the demand that the daemon has kept of the tier",
    ),
    CONFIG,
    click.Option(
        ["--bin"],
        type=duration,
        metavar="DURATION",
        help="sums over so long are forecast, such as 5m (default: the configuration's, or 5m)",
    ),
)
"""Where the demand comes from."""


def horizon(text: str) -> float:
    """Parse a duration of at most a day to seconds."""
    seconds = duration(text)
    if seconds > DAY_SECONDS:
        raise ValueError("must be at most 24h: nothing is forecast beyond a day")
    return seconds


def run(options: SimpleNamespace) -> int:
    # Before the import: numeric library threads only wait for each other here, and use cores others need.
    os.environ.update(ONE_THREAD)
    from agent.forecasting.input_series import input_from_options
    from agent.forecasting.results import forecast_now
    from exporters.documents.forecast import forecast_json, forecast_text

    given = input_from_options(options)
    found = forecast_now(options.tier or given.name, given, options.horizon)
    print(json.dumps(forecast_json(found), indent=2) if options.format == "json" else forecast_text(found))
    return FINE
