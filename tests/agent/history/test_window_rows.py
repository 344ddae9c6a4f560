"""Windows as rows of the history: they come back as they were, and share what they had in common."""

import math
import zlib

import pytest
import recorded
from history_samples import recorded_minutes
from history_samples import window as made_window
from hypothesis import given
from hypothesis import strategies as st

from agent.history.daily_queries import pieces
from agent.history.schema import HOURS, MINUTES, decode_window, encode_window, group_demand, sum_key
from rules.evaluator.observation import ClosedMinute
from rules.plan.load_bins import bin_window
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window

number = st.floats(allow_nan=False)
count = st.one_of(st.just(0.0), st.integers(0, 2**60).map(float), st.floats(0, 1e18))
family = st.text(min_size=1, max_size=12)


@st.composite
def histogram(draw: st.DrawFn) -> Histogram:
    edges = (*sorted(draw(st.sets(st.floats(allow_nan=False, allow_infinity=False), max_size=6))), math.inf)
    counts = draw(st.lists(count, min_size=len(edges), max_size=len(edges)))
    return Histogram(edges=edges, counts=tuple(counts), total=draw(st.none() | number))


gauge = st.builds(GaugeSum, integral=number, seconds=number, minimum=number, maximum=number, samples=number)
window = st.builds(
    Window,
    start=number,
    end=number,
    expected_seconds=number,
    covered_seconds=number,
    counters=st.dictionaries(family, number, max_size=4),
    histograms=st.dictionaries(family, st.lists(histogram(), max_size=3).map(tuple), max_size=3),
    gauges=st.dictionaries(family, gauge, max_size=3),
    short_seconds=st.dictionaries(family, number, max_size=3),
    gaps=st.dictionaries(family, st.sampled_from(Gap), max_size=3),
    sampled=st.frozensets(family, max_size=3),
)


def closed(pool: str) -> ClosedMinute:
    return ClosedMinute(tier="t", replica="r", pool=pool, slice=bin_window(made_window(0), None, "r"))


def test_request_of_two_pools_is_one_demand() -> None:
    (parts,) = group_demand([closed("prefill"), closed("decode")]).values()
    assert len(parts) == 1


@pytest.mark.parametrize(("pool", "series"), [("mixed", ""), ("prefill", "prefill"), ("decode", "decode")])
def test_hours_keep_pools_apart(pool: str, series: str) -> None:
    assert sum_key(HOURS, closed(pool))[1].replica == series
    assert sum_key(MINUTES, closed(pool))[1].replica == "r"


def test_time_is_cut_at_full_multiples() -> None:
    assert list(pieces(90.0, 250.0, 100.0)) == [(90.0, 100.0), (100.0, 200.0), (200.0, 250.0)]


@given(window)
def test_window_comes_back_as_it_was(made: Window) -> None:
    assert decode_window(encode_window(made)) == made


def test_recorded_minutes_come_back_sharing_edges() -> None:
    minutes = [minute for name in recorded.names() for minute in recorded_minutes(name)]
    assert len([minute for minute in minutes if minute.histograms]) > 10
    read = [decode_window(encode_window(minute)) for minute in minutes]
    assert read == minutes
    grids = [part.edges for minute in read for parts in minute.histograms.values() for part in parts]
    assert len({id(grid) for grid in grids}) == len(set(grids)) < len(grids)


@pytest.mark.parametrize(
    ("record", "place"),
    [
        ('{"start":0}', r"end\s+Field required"),
        ('{"start":"soon"}', r"start\s+Input should be a valid number"),
        ("[1]", "an object"),
        ("{", "Invalid JSON"),
    ],
)
def test_another_record_is_refused(record: str, place: str) -> None:
    with pytest.raises(ValueError, match=place):
        decode_window(zlib.compress(record.encode()))
