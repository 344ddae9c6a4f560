"""What a command of the forecast is about: a CSV, or what the daemon has kept of a tier, with the configuration's settings.

Owns the choice between the two and the words where neither will do. How a CSV is read is `agent.forecasting.csv_series`'s,
how demand becomes a series `agent.forecasting.history_input`'s.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from agent.config.keys import ForecastConfig
from agent.config.load import LoadedConfig, build_tier_contexts, find, load
from agent.errors import ConfigError
from agent.forecasting.calendar_events import list_calendar_events, sundays
from agent.forecasting.csv_series import read_trace
from agent.forecasting.history_input import demand_series, settled_time
from agent.forecasting.timestamps import UTC_TIMES, TimeStyle
from agent.history.reader import print_simulated_notice
from agent.history.store import HistoryStore
from exporters.documents.prewarm import OLD_SECONDS
from exporters.render.text import format_duration
from forecast.series.binned import Array, Series
from forecast.series.calendar import event_factors

KEPT_SECONDS = 60 * 86_400.0
"""More than any test and what may lie before it take."""

A_DAY_AHEAD = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSeries:
    """A series of requests with its name, how its times are written, and what is known beforehand: public holidays, and by
    what factor each of its bins was expected to differ (None: no events are configured)."""

    name: str
    series: Series
    times: TimeStyle
    sundays: Collection[date]
    factors: Array | None
    notes: tuple[str, ...] = ()


def input_from_options(options: argparse.Namespace) -> InputSeries:
    """By the options --history, --config, --tier and --bin of a command. Raises BadConfig, BadTrace, HistoryProblem."""
    loaded = load(find(options.config)) if options.history is None or options.config is not None else None
    if options.history is not None:
        return input_from_csv(options.history, loaded, options.bin)
    assert loaded is not None
    return input_from_history(loaded, select_tier(loaded, options.tier), options.bin)


def select_tier(loaded: LoadedConfig, tier: str | None) -> str:
    """The tier that is named, or the only one there is. Raises BadConfig."""
    tiers = sorted(build_tier_contexts(loaded))
    if tier is None and len(tiers) == 1:
        return tiers[0]
    if tier is None:
        raise ConfigError((f"say with --tier which one; there are {', '.join(tiers) or 'none'}",))
    if tier not in tiers:
        raise ConfigError((f"there is no tier {tier}; there are {', '.join(tiers) or 'none'}",))
    return tier


def history_path(loaded: LoadedConfig) -> Path:
    """Return where the history is. Raises BadConfig where none is kept."""
    if loaded.config.history_path is None:
        raise ConfigError(
            (f"{loaded.path}: data_dir: there is no history to read; role node keeps none unless it is given",)
        )
    return loaded.config.history_path


def input_from_csv(path: Path, loaded: LoadedConfig | None, bin_seconds: float | None) -> InputSeries:
    """A trace in bins of `bin_seconds` (default: the configuration's). Raises BadTrace, and BadConfig for holidays."""
    keys = loaded.config.forecast if loaded is not None else ForecastConfig()
    trace = read_trace(path, zone=keys.zone, bin_seconds=bin_seconds or keys.bin_seconds)
    return _given(str(path), trace.requests, keys, trace.times, trace.notes)


def input_from_history(
    loaded: LoadedConfig, tier: str, bin_seconds: float | None, now: float | None = None
) -> InputSeries:
    """A tier's own demand up to the last whole bin. Raises BadConfig where none is kept, HistoryProblem where it cannot be
    read."""
    keys = loaded.config.forecast
    width = bin_seconds or keys.bin_seconds
    if width % 60:
        raise ConfigError((f"--bin: demand is kept by the minute, of which {width:g} s is no whole number",))
    until = settled_time(time.time() if now is None else now, loaded.config.settling_seconds / 2) // width * width
    with HistoryStore.open_reader(history_path(loaded)) as reader:
        print_simulated_notice(reader)
        found = demand_series(reader.demand(tier, until - KEPT_SECONDS, until), zone=keys.zone, bin_seconds=width)
    if found is None:
        raise ConfigError(
            (f"{tier}: the history holds no demand of it yet; `sizewatch run` keeps it, or give --history CSV",)
        )
    late = until - found.requests.end
    notes = (
        (f"the newest demand that was kept is {format_duration(late)} old: is `sizewatch run` running?",)
        if late > OLD_SECONDS
        else ()
    )
    return _given(tier, found.requests, keys, UTC_TIMES, notes)


def _given(name: str, series: Series, keys: ForecastConfig, times: TimeStyle, notes: tuple[str, ...]) -> InputSeries:
    ahead = len(series) + round(A_DAY_AHEAD / series.bin_seconds)
    events = list_calendar_events(keys)
    factors = event_factors(events, series.start, series.bin_seconds, ahead, series.zone) if events else None
    return InputSeries(
        name=name,
        series=series,
        times=times,
        sundays=sundays(keys, series.start, series.bin_seconds, ahead),
        factors=factors,
        notes=notes,
    )
