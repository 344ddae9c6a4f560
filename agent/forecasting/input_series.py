"""Input of a forecast command: a CSV or the history of a tier, with the settings of the configuration."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from agent.config.forecast import ForecastConfig
from agent.config.load import LoadedConfig, build_tier_contexts, find, history_path, load, select_tier
from agent.errors import CannotJudgeError, ConfigError
from agent.forecasting.csv_series import read_trace, utc_text
from agent.forecasting.history_input import read_demand
from agent.forecasting.messages import settled_time
from agent.forecasting.responses import AHEAD_SECONDS, sundays
from agent.history.store import HistoryStore
from exporters.documents.forecast import OLD_SECONDS
from forecast.series.binned import Array, Series, resample, select_bins
from forecast.series.calendar import event_factors
from rules.telemetry.wording import format_duration
from rules.telemetry.work import UNTOLD, CapacityLengths

KEPT_SECONDS = 60 * 86_400.0
"""Seconds of history to read: more than any test with the time before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSeries:
    """Series with its name, the text of its times, the holidays, and the factor of known events up to a day after it.

    `series` is work in requests of `lengths`, and `requests` the requests beside it (None: work is requests)."""

    name: str
    series: Series
    time_text: Callable[[float], str]
    sundays: Collection[date]
    factors: Array
    notes: tuple[str, ...] = ()
    requests: Series | None = None
    lengths: CapacityLengths = UNTOLD


def input_from_options(options: SimpleNamespace) -> InputSeries:
    """Return the input of the options --history, --config, --tier and --bin. Raise ConfigError, TraceError, HistoryError."""
    loaded = None
    if options.history is None or options.config is not None:
        loaded = load(find(options.config))
    if options.history is not None:
        return input_from_csv(options.history, loaded, options.bin, options.tier)
    assert loaded is not None
    return input_from_history(loaded, select_tier(loaded, options.tier), options.bin)


def input_from_csv(
    path: Path, loaded: LoadedConfig | None, bin_seconds: float | None, tier: str | None = None
) -> InputSeries:
    """Return a trace in bins of `bin_seconds` (default: the configuration's). Raise TraceError or ConfigError.

    Its work is in requests of the lengths that the tier's capacity counts, without a configuration of its own means.
    """
    keys = loaded.config.forecast if loaded is not None else ForecastConfig()
    trace = read_trace(path, zone=keys.zone, bin_seconds=bin_seconds or keys.bin_seconds)
    lengths = trace.mean_lengths if loaded is None else _lengths_of(loaded, tier)
    if lengths == UNTOLD or not trace.tokens:
        return _given(str(path), (trace.requests,), UNTOLD, keys, trace.time_text, trace.notes)
    return _given(str(path), (trace.work(lengths), trace.requests), lengths, keys, trace.time_text, trace.notes)


def _lengths_of(loaded: LoadedConfig, tier: str | None) -> CapacityLengths:
    contexts = build_tier_contexts(loaded)
    if tier is None and len(contexts) == 1:
        (tier,) = contexts
    context = contexts.get(tier or "")
    if context is not None and context.capacity is not None:
        return context.capacity.lengths
    return UNTOLD


def input_from_history(loaded: LoadedConfig, tier: str, bin_seconds: float | None) -> InputSeries:
    """Return the demand of a tier up to the last whole bin. Raise ConfigError or HistoryError, CannotJudgeError without any."""
    keys = loaded.config.forecast
    width = bin_seconds or keys.bin_seconds
    if width % 60:
        raise ConfigError((f"--bin: demand is kept by the minute, of which {width:g} s is no whole number",))
    until = settled_time(time.time(), loaded.config.settling_seconds) // width * width
    lengths = _lengths_of(loaded, tier)
    with HistoryStore.open_reader(history_path(loaded)) as reader:
        if notice := reader.simulated_notice():
            print(notice, file=sys.stderr)
        minutes = read_demand(reader, tier, until - KEPT_SECONDS, until, lengths=lengths, zone=keys.zone)
    known = np.flatnonzero(np.isfinite(minutes[-1].values))
    if not len(known):
        lacks = f"the history holds no {format_duration(width)} of its demand from end to end yet"
        raise CannotJudgeError(f"{tier}: {lacks}; `sizewatch run` keeps it, or give --history CSV")
    first, last = int(known[0]), int(known[-1])
    kinds = [resample(select_bins(series, first, last + 1), width) for series in minutes]
    late = until - kinds[0].end
    notes: tuple[str, ...] = ()
    if late > OLD_SECONDS:
        notes = (f"the newest demand that was kept is {format_duration(late)} old: is `sizewatch run` running?",)
    return _given(tier, kinds, lengths, keys, utc_text, notes)


def _given(
    name: str,
    kinds: Sequence[Series],
    lengths: CapacityLengths,
    keys: ForecastConfig,
    time_text: Callable[[float], str],
    notes: tuple[str, ...],
) -> InputSeries:
    series = kinds[0]
    unit = () if len(kinds) < 2 else (f"rates are work: requests weighed by their tokens, in requests of {lengths}",)
    ahead = len(series) + round(AHEAD_SECONDS / series.bin_seconds)
    return InputSeries(
        name=name,
        series=series,
        requests=kinds[1] if len(kinds) > 1 else None,
        lengths=lengths,
        time_text=time_text,
        sundays=sundays(keys.country, series, ahead),
        factors=event_factors(keys.events, series.start, series.bin_seconds, ahead, series.zone),
        notes=(*notes, *unit),
    )
