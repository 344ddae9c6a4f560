"""The history file: three sums that agree, episodes, events, kept values, and what is thrown away.

Invariants of booking: (1) a row of hours or quarters is the sum of the minutes in it, by plan version and load bin,
however the minutes were grouped into turns; (2) what comes back is what was booked.
"""

import json
import math
import os
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import making
import numpy as np
import pytest
import recorded
from history_samples import START, booking, finished, recorded_minutes
from history_samples import window as made_window
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from agent.forecasting.history_input import read_demand
from agent.forecasting.messages import settled_time
from agent.history.daily_queries import pieces
from agent.history.schema import (
    APPLICATION_ID,
    DAY,
    DEMAND_COLUMNS,
    HOURS,
    MINUTES,
    VERSION,
    HistoryError,
    decode_span,
    decode_window,
    encode_window,
    group_demand,
    span_row,
    sum_key,
)
from agent.history.service import HistoryService
from agent.history.store import HistoryStore, Reader
from rules.confidence import Certainty
from rules.evaluator.observation import ClosedMinute
from rules.evaluator.timeline import TimelineEvent
from rules.plan.load_bins import bin_window
from rules.telemetry import windows
from rules.telemetry.arrivals import MinuteDemand
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Cause, Finding, Status, Subject, UnknownSpan

HOUR = 3600.0
EVER = (0.0, START + 1000 * DAY)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.db"


@pytest.fixture
def store(path):
    with HistoryStore(path) as one:
        yield one


def restart(t):
    return TimelineEvent(t=t, kind="restart", tier="h100", replica="r0", text="started again")


# ---- the file ----


def test_file_is_private_marked_and_synchronous(path):
    before = os.umask(0)
    try:
        with HistoryStore(path) as store:
            store.book([booking(0)])
            modes = {file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()}
            names = ("application_id", "user_version", "journal_mode", "auto_vacuum", "synchronous")
            marks = [store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    finally:
        os.umask(before)
    assert modes == {"history.db": "0o600", "history.db-wal": "0o600", "history.db-shm": "0o600"}
    assert marks == [APPLICATION_ID, VERSION, "wal", 1, 2]


# ---- booking ----


@st.composite
def turns(draw):
    bins = st.sampled_from([None, 0, 1, "beyond"])
    numbers = st.integers(1, 1000).map(float)
    covered = st.sampled_from([0.0, 15.0, 60.0])
    replicas, plans = st.sampled_from(["r0", "r1"]), st.sampled_from(["v1", "v2"])
    rows = st.tuples(st.integers(0, 130), replicas, bins, plans, numbers, covered)
    made = []
    for minute, replica, bin, plan, requests, seconds in draw(st.lists(rows, min_size=1, max_size=12)):
        place = {"bin": None, "beyond": "too much"} if bin == "beyond" else {"bin": bin}
        made.append(booking(minute, replica, plan=plan, finished=requests, covered=seconds, **place))
    cuts = sorted(draw(st.lists(st.integers(0, len(made)), max_size=3)))
    return [made[a:b] for a, b in zip([0, *cuts], [*cuts, len(made)], strict=True)]


def grouped(bookings, seconds, replicas):
    """What the rows should be: (start, plan, replica, bin, beyond) -> sum of the windows."""
    found = {}
    for one in bookings:
        start = windows.minute_of(one.slice.window) // seconds * seconds
        name = one.slice.replica if replicas else None
        found.setdefault((start, one.plan_version, name, one.slice.bin, one.slice.beyond), []).append(one.slice.window)
    return {key: windows.sum_windows(group) for key, group in found.items()}


def test_minute_keeps_its_load_and_bin(store):
    far = "61 rps is above 60"
    booked = (booking(0, bin=3), booking(1, bin=None, beyond=far), booking(2, bin=None))
    store.book(booked)
    assert store.minutes("h100", *EVER) == tuple(one.slice for one in booked)
    hours = [(s.replica, s.bin, s.beyond, s.rps, s.in_system) for s in store.bins("h100", *EVER)]
    assert hours == [(None, None, far, 1.0, 8.0), (None, None, "", 1.0, 8.0), (None, 3, "", 1.0, 8.0)]


def test_late_parts_join_their_rows(store):
    store.book(
        [booking(0, finished=60.0), booking(0, tier="two", bin=1), booking(0, tier="far", bin=None, beyond="first")]
    )
    store.book(
        [booking(0, finished=20.0), booking(0, tier="two", bin=2), booking(1, tier="far", bin=None, beyond="last")]
    )
    (minute,) = store.minutes("h100", *EVER)
    assert minute.window.counters["requests_finished"] == 80.0
    assert [s.bin for s in store.minutes("two", *EVER)] == [1, 2]
    assert [s.beyond for s in store.bins("far", *EVER)] == ["last"]
    store.book([booking(minute, replica, tier="full") for minute in range(60) for replica in ("r0", "r1")])
    (hour,) = store.bins("full", *EVER)
    assert (hour.rps, hour.in_system, hour.window.covered_seconds) == (1.0, 8.0, 7200.0), "the load is of a replica"


def test_tiers_and_plans_are_kept_apart(store):
    store.book([booking(0, plan="v2"), booking(60, plan="v1"), booking(0, tier="mi300", plan="")])
    assert len(store.bins("h100", *EVER)) == 2
    assert [s.window.start for s in store.bins("h100", *EVER, plan="v2")] == [START]
    assert store.plan_versions("h100", *EVER) == ("v2", "v1")
    for first, last, versions in ((0, 1, ("v2",)), (1, 2, ("v1",)), (2, 3, ())):
        assert store.plan_versions("h100", START + first * HOUR, START + last * HOUR) == versions
    assert store.plan_versions("mi300", *EVER) == ("",)
    assert store.bins("mi300", *EVER, plan="") == store.bins("mi300", *EVER)
    assert store.bins("h200", *EVER) == ()


def test_rows_come_by_begin_oldest_first(store):
    store.book([booking(minute) for minute in (130, 61, 60, 59, 0)])
    starts = [s.window.start - START for s in store.minutes("h100", START, START + HOUR)]
    assert starts == [0.0, 59 * 60.0]
    assert [s.window.start - START for s in store.bins("h100", START + HOUR, START + 2 * HOUR)] == [HOUR]
    assert [s.window.start - START for s in store.bins("h100", START + 1, START + 2 * HOUR)] == [HOUR]
    assert [s.window.start - START for s in store.replica_bins("h100", *EVER)] == [0.0, 59 * 60, HOUR, 130 * 60]


@settings(max_examples=40, deadline=None)
@given(turns())
def test_sums_equal_their_minutes(tmp_path_factory, booked):
    everything = [one for turn in booked for one in turn]
    with HistoryStore(tmp_path_factory.mktemp("sums") / "history.db") as store:
        for turn in booked:
            store.book(turn)
        reads = ((store.minutes, 60, True), (store.replica_bins, 900, True), (store.bins, 3600, False))
        for ask, seconds, replicas in reads:
            rows = {
                (s.window.start // seconds * seconds, plan, s.replica, s.bin, s.beyond): s.window
                for plan in ("v1", "v2")
                for s in ask("h100", *EVER, plan)
            }
            assert rows == grouped(everything, seconds, replicas)


def test_real_minute_takes_under_a_kilobyte():
    recorded = [one for name in ("steady", "diurnal_quiet", "specdecode", "lora") for one in recorded_minutes(name)]
    sizes = [len(encode_window(minute)) for minute in recorded if minute.covered_seconds > 45]
    assert len(sizes) >= 8
    assert 500 < sum(sizes) / len(sizes) < 1000


# ---- episodes, events, kept values ----

VERDICT = making.verdict(
    "TtftDivergence",
    t=START + 60.0,
    subject=Subject(tier="h100"),
    status=Status.CRITICAL,
    stage=3,
    observed=Reading(value=None, low=2.5, high=float("inf"), n=812.0),
    expected=Missing(gap=Gap.NOT_IN_PLAN, text="the curve lacks it"),
    details=("812 requests", "P99 2.5 s"),
    causes=(Cause(cause="cold", certainty=Certainty.LIKELY, evidence=("hit rate 0.1",), against=("no restart",)),),
    actions=("Look at the router",),
)
OPEN = making.finding(VERDICT)
OF_REPLICA = replace(OPEN, rule="KvCacheCascade", subject=Subject(tier="h100", replica="r0"), started_at=START)
BLIND = UnknownSpan(
    rule=OPEN.rule, subject=OPEN.subject, reason=Gap.SCRAPE_FAILED, text="", started_at=OPEN.started_at, ended_at=None
)


def test_lasting_spans_come_back(store):
    elsewhere = replace(OPEN, subject=Subject(tier="mi300"))
    ended = replace(OF_REPLICA, ended_at=START + 300.0)
    store.book(spans=[OPEN, BLIND, ended, elsewhere])
    assert store.spans(Finding, START + 300.0) == (ended, OPEN, elsewhere)
    assert store.spans(Finding, START + 301.0) == (OPEN, elsewhere)
    assert store.spans(Finding, START, tier="h100") == (ended, OPEN)
    assert store.spans(UnknownSpan, START) == (BLIND,)


def test_episode_without_details_is_still_read():
    stored = json.loads(span_row(OPEN)[-1])
    del stored["worst"]["details"]
    assert decode_span(Finding, json.dumps(stored)) == replace(OPEN, worst=replace(VERDICT, details=()))


def test_ended_episode_replaces_the_open_one(store, path):
    store.book(spans=[OPEN, BLIND])
    ended = replace(OPEN, ended_at=START + 300.0, worst=replace(VERDICT, observed=VERDICT.expected))
    store.book(spans=[ended])
    store.book(spans=[replace(BLIND, ended_at=START + 90.0)])
    assert store.spans(Finding, START) == (ended,)
    assert store.spans(UnknownSpan, START) == (replace(BLIND, ended_at=START + 90.0),)
    late = restart(START + 9.5)
    early = TimelineEvent(t=START, kind="plan", tier=None, replica=None, text="plan v2")
    store.book(events=[late, early])
    assert (store.events(START), store.events(START + 1)) == ((early, late), (late,))
    assert store.read_value("step13:v1", dict) is None
    for name, text in (("step13:v1", '{"ok": 1}'), ("step13:v1", '{"ok": 2}'), ("step13:v2", "[]")):
        store.keep(name, text)
    assert (store.read_value("step13:v1", dict), store.read_value("step13:v2", list)) == ({"ok": 2}, [])
    log = path.with_name("history.db-wal")
    before = log.stat().st_size
    store.book([])
    assert log.stat().st_size == before > 0, "booking nothing writes nothing"


# ---- retention ----


def test_rows_go_after_their_retention(store):
    store.book([booking(0), booking(60)])
    store.book(events=[restart(START)])
    store.book(spans=[replace(OPEN, ended_at=START + 61.0), OF_REPLICA])
    store.prune(START + 2 * DAY)
    assert len(store.minutes("h100", *EVER)) == 2
    store.prune(START + 2 * DAY + 1)
    assert (len(store.minutes("h100", *EVER)), len(store.replica_bins("h100", *EVER))) == (1, 2)
    store.prune(START + 8 * DAY + 1)
    assert (len(store.replica_bins("h100", *EVER)), len(store.bins("h100", *EVER))) == (1, 2)
    store.prune(START + 91 * DAY + 1)
    assert (len(store.bins("h100", *EVER)), len(store.demand("h100", *EVER)), store.events(0.0)) == (1, 1, ())
    assert len(store.spans(Finding, 0.0)) == 2, "the episode ended a minute later"
    store.prune(START + 100 * DAY)
    assert (store.bins("h100", *EVER), store.demand("h100", *EVER)) == ((), ())
    assert store.spans(Finding, 0.0) == (OF_REPLICA,)


def test_wrong_clock_costs_the_oldest_days_alone(store):
    store.book([booking(day * 24 * 60 + hour * 60) for day in range(10) for hour in (0, 12)])
    store.book(events=[restart(START + day * DAY) for day in range(10)])
    years = START + 2000 * DAY
    keeping = HistoryService(lambda: store)
    keeping.upkeep({}, {}, years)
    left = store.bins("h100", *EVER)
    assert min(one.window.start for one in left) <= START + 4 * DAY
    assert finished(left) >= 60.0 * 12
    assert finished(store.minutes("h100", *EVER)) >= 60.0 * 12
    assert len(store.events(0.0)) == 6
    for _ in range(30):
        keeping.upkeep({}, {}, years)
    assert (store.bins("h100", *EVER), store.minutes("h100", *EVER), store.events(0.0)) == ((), (), ())


def test_rows_stand_apart_by_release(store):
    before, after = ({"release": f"vllm 0.{minor}.0", "precision": "fp8/bf16"} for minor in (32, 33))
    store.book([replace(booking(0, "r0"), **before), replace(booking(0, "r1"), **before)])
    store.book([replace(booking(1, "r0"), **after), replace(booking(1, "r1"), **before)])
    rows = store._connection.execute(
        "SELECT release, precision, start FROM hours JOIN series ON series.id = series ORDER BY release"
    ).fetchall()
    assert rows == [("vllm 0.32.0", "fp8/bf16", START), ("vllm 0.33.0", "fp8/bf16", START)]
    assert sorted(one.window.counters["requests_finished"] for one in store.bins("h100", *EVER)) == [60.0, 180.0]
    assert {len(store.minutes("h100", *EVER)), len(store.replica_bins("h100", *EVER))} == {4, 2}


def test_rows_are_read_by_their_key(store):
    """A table scan of hundred thousands of rows would pass every other test."""
    lines: list[str] = []
    store._connection.set_trace_callback(lines.append)
    store.minutes("h100", *EVER)
    store.replica_bins("h100", *EVER)
    store.bins("h100", *EVER, "v1")
    store.plan_versions("h100", *EVER)
    store._connection.set_trace_callback(None)
    assert len(lines) == 4
    for statement in lines:
        steps = [step for *_, step in store._connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
        assert any(step.startswith("SEARCH") and "start>" in step for step in steps), steps


def test_gone_replicas_leave_no_name(store):
    store.book([booking(0, "gone"), booking(0, "stays"), booking(91 * 24 * 60, "stays")])
    for seconds, names in ((HOUR, {"", "gone", "stays"}), (2 * HOUR + 1, {"", "stays"})):
        store.prune(START + 91 * DAY + seconds)
        assert {name for (name,) in store._connection.execute("SELECT replica FROM series")} == names
    assert finished(store.bins("h100", *EVER)) == 60.0


def test_file_shrinks_after_pruning(store, path):
    def size():
        store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return path.stat().st_size

    store.book([booking(minute, f"r{replica}") for minute in range(60) for replica in range(40)])
    full = size()
    store.prune(START + 4 * DAY)
    assert store.minutes("h100", *EVER) == ()
    assert size() < 0.3 * full
    store.book([booking(minute, "r0") for minute in range(4 * 24 * 60, 4 * 24 * 60 + 60)])
    assert finished(store.bins("h100", *EVER)) == 60.0 * (2400 + 60)


# ---- windows as rows: they come back as they were, and share what they had in common ----


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


# ---- demand ----


def requests(several: tuple[MinuteDemand, ...]) -> list[tuple[float, float | None]]:
    return [((one.start - START) / 60, one.requests) for one in several]


def test_request_through_both_pools_arrives_once(store: HistoryStore) -> None:
    pools = [replace(booking(0, name), pool=name) for name in ("prefill", "decode")]
    store.book(pools)
    assert requests(store.demand("h100", *EVER)) == [(0, 60.0)]
    assert finished(store.minutes("h100", *EVER)) == 120.0


def test_demand_is_atomic_with_minutes(store: HistoryStore) -> None:
    store.book([booking(0)])
    store._connection.execute("ALTER TABLE demand RENAME COLUMN waiting TO gone")
    with pytest.raises(sqlite3.OperationalError):
        store.book([booking(1)])
    store._connection.execute("ALTER TABLE demand RENAME COLUMN gone TO waiting")
    assert finished(store.minutes("h100", *EVER)) == 60.0
    assert requests(store.demand("h100", *EVER)) == [(0, 60.0)]


def test_the_columns_are_those_of_this_format() -> None:
    """A column that comes or goes needs another VERSION, or a history of today is no longer read."""
    assert VERSION == 6
    assert ", ".join(DEMAND_COLUMNS) == (
        "first, last, expected_seconds, covered_seconds, requests, requests_seconds, completed, prompt_tokens,"
        " prompt_seconds, generation_tokens, generation_seconds, waiting, waiting_seconds, computed_tokens, computed_seconds"
    )


@pytest.mark.parametrize(("column", "value", "read"), [
    ("prompt_tokens", "'x'", Reader.demand),
    ("requests", "x'00ff'", Reader.requests),
])  # fmt: skip
def test_a_value_of_another_type_is_damage(
    path: Path, store: HistoryStore, column: str, value: str, read: Callable[..., object]
) -> None:
    store.book([booking(0)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE demand SET {column} = {value}")
    with HistoryStore.open_reader(path) as reader, pytest.raises(HistoryError, match="is damaged: demand holds"):
        read(reader, "h100", START, START + 600)


def minute(place: int, amount: float | None) -> MinuteDemand:
    spans = {"start": START + 60.0 * place, "covered_seconds": 60.0, "expected_seconds": 60.0}
    return MinuteDemand(requests=amount, prompt_tokens=None, generation_tokens=None, waiting=None, **spans)


def test_unknown_minutes_are_missing_in_series() -> None:
    kept = [minute(0, None), minute(1, 5.0), minute(3, None), minute(4, 7.0)]
    reader: Any = SimpleNamespace(demand=lambda *_: kept)
    (found,) = read_demand(reader, "h100", START, START + 360.0, zone="Europe/Berlin")
    assert (found.start, found.bin_seconds, found.zone) == (START, 60.0, "Europe/Berlin")
    assert_array_equal(found.values, np.array([math.nan, 5, math.nan, math.nan, 7, math.nan]))


def test_minute_settles_after_two_intervals() -> None:
    assert [settled_time(START + t, 30.0) - START for t in (29, 30, 89, 90)] == [-60.0, 0.0, 0.0, 60.0]
