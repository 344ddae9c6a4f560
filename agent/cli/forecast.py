"""Command `sizewatch forecast`: expected demand, its uncertainty, and the accuracy of the last day.

The forecast libraries are imported on demand.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from agent.cli.arguments import FINE, add_config, add_format, duration
from agent.worker.process import ONE_THREAD

DEFAULT_HORIZON_SECONDS = 900.0
DAY_SECONDS = 86_400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tier", metavar="T", help="whose demand; default the only one")
    add_history(parser)
    parser.add_argument(
        "--horizon",
        type=horizon,
        default=DEFAULT_HORIZON_SECONDS,
        metavar="15m",
        help="how far ahead, at most 24h (default: 15m)",
    )
    add_format(parser)


def add_history(parser: argparse.ArgumentParser) -> None:
    """Add `--history CSV`, `-c FILE` and `--bin 5m`."""
    parser.add_argument(
        "--history",
        type=Path,
        metavar="CSV",
        help="timestamp,requests[,...], also gzipped; without it the demand that the daemon has kept of the tier",
    )
    add_config(parser)
    parser.add_argument(
        "--bin",
        type=duration,
        metavar="DURATION",
        help="sums over so long are forecast, such as 5m (default: the configuration's, or 5m)",
    )


def horizon(text: str) -> float:
    """Parse a duration of at most a day to seconds. argparse turns the error into its usage message and exit code 2."""
    seconds = duration(text)
    if seconds > DAY_SECONDS:
        raise argparse.ArgumentTypeError("must be at most 24h: nothing is forecast beyond a day")
    return seconds


def run(options: argparse.Namespace) -> int:
    # Before the import: numeric library threads only wait for each other here, and use cores others need.
    os.environ.update(ONE_THREAD)
    from agent.forecasting.input_series import input_from_options
    from agent.forecasting.results import forecast_now
    from exporters.documents.forecast import forecast_json, forecast_text

    given = input_from_options(options)
    found = forecast_now(options.tier or given.name, given, options.horizon)
    print(json.dumps(forecast_json(found), indent=2) if options.format == "json" else forecast_text(found))
    return FINE
