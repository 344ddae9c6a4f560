"""Input of a forecast command: a CSV or the history of a tier, with the settings of the configuration."""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from agent.config.forecast import ForecastConfig
from agent.config.load import LoadedConfig, find, history_path, load, select_tier
from agent.errors import ConfigError
from agent.forecasting.csv_series import read_trace
from agent.forecasting.history_input import demand_series
from agent.forecasting.requests import settled_time
from agent.forecasting.responses import AHEAD_SECONDS, sundays
from agent.forecasting.timestamps import UTC_TIMES, TimeStyle
from agent.history.reader import print_simulated_notice
from agent.history.store import HistoryStore
from exporters.documents.prewarm import OLD_SECONDS
from exporters.render.text import format_duration
from forecast.series.binned import Array, Series
from forecast.series.calendar import event_factors

KEPT_SECONDS = 60 * 86_400.0
"""Seconds of history to read: more than any test with the time before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSeries:
    """Series of requests with its name, the format of its times, the public holidays, and the factor of known events in
    each bin and in the day after."""

    name: str
    series: Series
    times: TimeStyle
    sundays: Collection[date]
    factors: Array
    notes: tuple[str, ...] = ()


def input_from_options(options: argparse.Namespace) -> InputSeries:
    """Return the input of the options --history, --config, --tier and --bin. Raise ConfigError, TraceError, HistoryError."""
    loaded = load(find(options.config)) if options.history is None or options.config is not None else None
    if options.history is not None:
        return input_from_csv(options.history, loaded, options.bin)
    assert loaded is not None
    return input_from_history(loaded, select_tier(loaded, options.tier), options.bin)


def input_from_csv(path: Path, loaded: LoadedConfig | None, bin_seconds: float | None) -> InputSeries:
    """Return a trace in bins of `bin_seconds` (default: the configuration's). Raise TraceError or ConfigError."""
    keys = loaded.config.forecast if loaded is not None else ForecastConfig()
    trace = read_trace(path, zone=keys.zone, bin_seconds=bin_seconds or keys.bin_seconds)
    return _given(str(path), trace.requests, keys, trace.times, trace.notes)


def input_from_history(
    loaded: LoadedConfig, tier: str, bin_seconds: float | None, now: float | None = None
) -> InputSeries:
    """Return the demand of a tier up to the last whole bin. Raise ConfigError or HistoryError."""
    keys = loaded.config.forecast
    width = bin_seconds or keys.bin_seconds
    if width % 60:
        raise ConfigError((f"--bin: demand is kept by the minute, of which {width:g} s is no whole number",))
    until = settled_time(time.time() if now is None else now, loaded.config.settling_seconds) // width * width
    with HistoryStore.open_reader(history_path(loaded)) as reader:
        print_simulated_notice(reader)
        found = demand_series(reader.demand(tier, until - KEPT_SECONDS, until), zone=keys.zone, bin_seconds=width)
    if found is None:
        raise ConfigError(
            (f"{tier}: the history holds no demand of it yet; `sizewatch run` keeps it, or give --history CSV",)
        )
    late = until - found.end
    notes = (
        (f"the newest demand that was kept is {format_duration(late)} old: is `sizewatch run` running?",)
        if late > OLD_SECONDS
        else ()
    )
    return _given(tier, found, keys, UTC_TIMES, notes)


def _given(name: str, series: Series, keys: ForecastConfig, times: TimeStyle, notes: tuple[str, ...]) -> InputSeries:
    ahead = len(series) + round(AHEAD_SECONDS / series.bin_seconds)
    return InputSeries(
        name=name,
        series=series,
        times=times,
        sundays=sundays(keys.country, series, ahead),
        factors=event_factors(keys.events, series.start, series.bin_seconds, ahead, series.zone),
        notes=notes,
    )
