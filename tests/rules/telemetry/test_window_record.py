"""A window as a record and back.

1. from_record(to_record(w)) == w, through JSON text that any reader takes (no NaN, no Infinity).
2. Another record is refused with a sentence.
"""

import json
import math

import pytest
import recorded
from history_samples import recorded_minutes
from hypothesis import given
from hypothesis import strategies as st

from rules.telemetry import windows
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.window_record import from_record, to_record
from rules.telemetry.windows import Window

number = st.floats(allow_nan=False)
count = st.one_of(st.just(0.0), st.integers(0, 2**60).map(float), st.floats(0, 1e18))
family = st.text(min_size=1, max_size=12)


@st.composite
def histogram(draw):
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


def through_text(one: Window) -> Window:
    return from_record(json.loads(json.dumps(to_record(one), allow_nan=False)))


@given(window)
def test_any_window_comes_back_as_it_was(one):
    assert through_text(one) == one


def test_every_minute_of_every_recording_comes_back_as_it_was():
    minutes = [minute for name in recorded.names() for minute in recorded_minutes(name)]
    assert len([minute for minute in minutes if minute.histograms]) > 10
    assert [through_text(minute) for minute in minutes] == minutes


def one_part(edges, counts, total=1.5):
    return Histogram(edges=edges, counts=counts, total=total)


def test_the_record_is_compact_grids_once_empty_buckets_dropped_empty_parts_left_out():
    coarse, fine = (1.0, math.inf), (0.5, 1.0, 2.0, math.inf)
    made = Window(
        start=60.25,
        end=120.0,
        expected_seconds=60.0,
        covered_seconds=59.75,
        counters={"requests_finished": 3.0},
        histograms={
            "ttft_seconds": (one_part(coarse, (1.0, 0.0)), one_part(fine, (0.0, 2.0, 0.0, 0.0), total=None)),
            "e2e_seconds": (one_part(fine, (0.0, 0.0, 0.0, 0.0), total=0.0),),
        },
        gauges={"kv_utilization": GaugeSum(integral=6.0, seconds=60.0, minimum=0.0, maximum=0.5, samples=4.0)},
        gaps={windows.EVERYTHING: Gap.STALE},
        sampled=frozenset({"b", "a"}),
    )
    assert to_record(made) == {
        "s": 60.25,
        "e": 120,
        "x": 60,
        "c": 59.75,
        "n": {"requests_finished": 3},
        "h": {"ttft_seconds": [[0, 1.5, [1]], [1, None, [0, 2]]], "e2e_seconds": [[1, 0, []]]},
        "b": [[1, "inf"], [0.5, 1, 2, "inf"]],
        "g": {"kv_utilization": [6, 60, 0, 0.5, 4]},
        "w": {"*": "stale"},
        "p": ["a", "b"],
    }
    assert through_text(made) == made
    assert to_record(windows.gap_window(0.0, 60.0, Gap.STALE)) == {
        "s": 0,
        "e": 60,
        "x": 60,
        "c": 0,
        "w": {"*": "stale"},
    }


def test_whole_numbers_beyond_what_a_float_holds_exactly_stay_what_they_were():
    huge = Window(start=0.0, end=1.0, expected_seconds=1.0, covered_seconds=1.0, counters={"a": 2.0**53, "b": 1e300})
    assert json.dumps(to_record(huge)["n"]) == '{"a": 9007199254740992.0, "b": 1e+300}'
    assert through_text(huge) == huge


WHOLE = {"s": 0, "e": 60, "x": 60, "c": 60, "h": {"ttft_seconds": [[0, 1, [1]]]}, "b": [[1, "inf"]]}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"s": None}, "float() argument must be"),
        ({"w": {"*": "gone_fishing"}}, "'gone_fishing' is not a valid Gap"),
        ({"h": {"ttft_seconds": [[0, 1, [1, 2, 3]]]}}, "3 counts on grid 0, which has 2 buckets"),
        ({"h": {"ttft_seconds": [[1, 1, [1]]]}}, "IndexError"),
        ({"h": {"ttft_seconds": [[-1, 1, [1]]]}}, "grid -1"),
        ({"g": {"kv_utilization": [1, 2]}}, "not enough values to unpack"),
        ({"n": [1]}, "AttributeError"),
    ],
)
def test_another_record_is_refused_with_what_is_wrong(change, text):
    assert from_record(WHOLE).histograms["ttft_seconds"][0].n == 1.0
    with pytest.raises(ValueError, match=r"^not the record of a window") as refused:
        from_record({**WHOLE, **change})
    assert text in str(refused.value)


@pytest.mark.parametrize("key", ["s", "e", "x", "c"])
def test_a_record_without_its_times_is_refused(key):
    with pytest.raises(ValueError, match=f"KeyError: '{key}'"):
        from_record({k: v for k, v in WHOLE.items() if k != key})
