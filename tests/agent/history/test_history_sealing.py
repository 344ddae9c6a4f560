"""Sealing: rows that are over become chunks.

Invariants: (1) whatever was sealed when, a question has the answer that it had before; (2) a kill at any instant loses nothing and
counts nothing twice; (3) a booking waits for one piece at most; (4) the file stays within its stated size and, once rows begin to
go, grows no more.
"""

import os
import random
import signal
import sqlite3
import threading
import time
from dataclasses import replace

import pytest
from history_samples import START, booking, finished, recorded_minutes
from hypothesis import given, settings
from hypothesis import strategies as st
from test_history import grouped, turns
from waiting import CEILING_SECONDS

from agent.history import chunks, codec, compaction, schema
from agent.history import store as store_module
from agent.history.chunks import ChunkRow
from agent.history.errors import HistoryError, HistoryErrorKind
from agent.history.schema import DAY, SUMS
from agent.history.store import HistoryStore
from agent.history.write_buffer import MinuteRecord
from rules.plan import load_bins

HOUR = 3600.0
EVER = (0.0, START + 1000 * DAY)
LATER = START + 3 * DAY

REPLICA_DAY_BYTES = 75_000
"""docs/history.md, How big."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.db"


@pytest.fixture
def store(path):
    with HistoryStore(path) as one:
        yield one


def held(store, table):
    return store._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


# ---- a chunk ----


@given(st.lists(st.lists(st.floats(allow_nan=False), min_size=3, max_size=3), max_size=6))
def test_columns_of_any_numbers_come_back_as_they_were(several):
    assert [list(one) for one in codec.decode_columns(codec.encode_columns(several), 3, len(several))] == several


@pytest.mark.parametrize(
    ("column", "size"),
    [
        ([0.0] * 4, 1),
        ([2.5] * 4, 9),
        ([0, 1, 2, 255], 1 + 4),
        ([-1, 1, 2, 300], 1 + 8),
        ([1, 2, 3, 70_000], 1 + 16),
        ([1, 2, 3, 2.0**40], 1 + 32),
        ([1, 2, 3, 0.5], 1 + 32),
        ([1, 2, 3, float("inf")], 1 + 32),
    ],
)
def test_a_column_takes_no_more_bytes_than_its_numbers_need(column, size):
    assert len(codec.encode_columns([column])) == size


def test_a_column_that_was_there_before_is_not_written_again():
    assert len(codec.encode_columns([[1.5, 2.5, 3.5]] * 3)) == (1 + 24) + 2 * (1 + 4)


@pytest.mark.parametrize("data", [b"", b"d1234", b"x", b"=\x05\x00\x00\x00", b"0more"])
def test_bytes_that_are_no_columns_are_refused(data):
    with pytest.raises(ValueError, match=r"columns that do not unpack|behind its columns"):
        codec.decode_columns(data, 3, 1)


@pytest.mark.parametrize("name", ["steady", "restart", "specdecode", "lora", "sglang", "llamacpp", "cascade_slow"])
def test_minutes_of_real_engines_come_back_from_a_chunk_exactly(name):
    base = int(recorded_minutes(name)[0].start) // 3600 * 3600
    rows = [
        ChunkRow(base + 60 * place, place % 3 - 2, "beyond" if place % 3 == 0 else "", window)
        for place, window in enumerate(recorded_minutes(name))
    ]
    assert list(chunks.decode_chunk(base, chunks.encode_chunk(base, rows))) == rows


def test_a_chunk_of_another_format_says_so(monkeypatch):
    monkeypatch.setattr(chunks, "FORMAT", 2)
    body = chunks.encode_chunk(0, [ChunkRow(0, 0, "", recorded_minutes("steady")[0])])
    monkeypatch.undo()
    with pytest.raises(ValueError, match="format 2 of a chunk, this sizewatch knows 1"):
        chunks.decode_chunk(0, body)


# ---- what is asked afterwards ----


@settings(max_examples=15, deadline=None)
@given(turns(), st.lists(st.sampled_from([None, 2.1 * HOUR, 4 * HOUR, 3 * DAY]), min_size=4, max_size=4))
def test_the_answers_are_the_same_whatever_was_sealed_when(tmp_path_factory, booked, when):
    everything = [one for turn in booked for one in turn]
    with HistoryStore(tmp_path_factory.mktemp("sealed") / "history.db") as store:
        for turn, after in zip(booked, when, strict=False):
            store.book(turn)
            if after is not None:
                store.seal(START + after)
        for ask, seconds, replicas in (
            (store.minutes, 60, True),
            (store.replica_bins, 900, True),
            (store.bins, 3600, False),
        ):
            found = [s for plan in ("v1", "v2") for s in ask("h100", *EVER, plan_version=plan)]
            rows = {
                (s.window.start // seconds * seconds, plan, s.replica, s.bin, s.beyond): s.window
                for plan in ("v1", "v2")
                for s in ask("h100", *EVER, plan_version=plan)
            }
            assert len(found) == len(rows)
            assert rows == grouped(everything, seconds, replicas)


def test_what_is_over_for_an_hour_is_sealed_and_its_rows_are_gone(store):
    store.book([booking(0), booking(59), booking(60)])
    assert store.seal(START + 2 * HOUR - 1) == 0
    assert store.seal(START + 2 * HOUR) == 2
    assert [held(store, table) for table in ("minutes", "quarters", "hours", "chunks")] == [1, 3, 2, 1]
    # 22:00 to 24:00 of its day: a day is over with it.
    assert store.seal(LATER) == 1 + 3 + 2
    assert [held(store, table) for table in ("minutes", "quarters", "hours")] == [0, 0, 0]
    assert store.seal(LATER) == 0
    assert finished(store.minutes("h100", *EVER)) == finished(store.bins("h100", *EVER)) == 180.0


def test_a_part_of_a_chunk_is_given_by_when_its_rows_begin(store):
    store.book([booking(minute) for minute in (0, 1, 30, 59)])
    before = store.minutes("h100", START + 60, START + 59 * 60)
    store.seal(LATER)
    assert store.minutes("h100", START + 60, START + 59 * 60) == before
    assert [s.window.start - START for s in before] == [60.0, 1800.0]


def test_what_is_booked_into_a_sealed_time_adds_to_it_and_goes_into_the_same_chunk(store):
    store.book([booking(0, finished=60.0, bin=None, beyond="first")])
    store.seal(LATER)
    store.book([booking(0, finished=20.0, bin=None, beyond="second"), booking(1)])
    late = store.minutes("h100", *EVER)
    assert [(s.window.counters["requests_finished"], s.beyond) for s in late] == [(80.0, "second"), (60.0, "")]
    assert (held(store, "minutes"), held(store, "chunks")) == (2, 3)
    assert store.seal(LATER) > 0
    assert store.minutes("h100", *EVER) == late
    assert (held(store, "minutes"), held(store, "chunks")) == (0, 3)


def test_plan_versions_are_those_of_the_hours_asked_for_sealed_or_not(store):
    store.book([booking(0, plan="v1"), booking(60, plan="v2"), booking(70, plan="v1")])
    asked = [EVER, (START, START + HOUR), (START + HOUR, START + 2 * HOUR), (START + 2 * HOUR, START + 3 * HOUR)]
    before = [store.plan_versions("h100", *one) for one in asked]
    store.seal(LATER)
    assert held(store, "hours") == 0
    assert [store.plan_versions("h100", *one) for one in asked] == before
    assert before == [("v1", "v2"), ("v1",), ("v1", "v2"), ()]


def test_whether_a_tier_was_booked_since_is_known_sealed_or_not(store):
    store.book([booking(30)])
    asked = [("h100", START), ("h100", START + 1800), ("h100", START + 1801), ("mi300", START)]
    before = [store.has_rows_since(*one) for one in asked]
    store.seal(LATER)
    assert [store.has_rows_since(*one) for one in asked] == before == [True, True, False, False]


def test_a_reader_of_another_process_sees_rows_and_chunks(store, path):
    store.book([booking(minute) for minute in range(120)])
    with HistoryStore.open_reader(path) as reader:
        before = reader.minutes("h100", *EVER)
        store.seal(START + 2 * HOUR)
        assert reader.minutes("h100", *EVER) == before
        assert len(before) == 120


def test_requests_alone_are_those_of_the_demand(store):
    store.book([booking(minute, finished=minute + 1.0) for minute in range(40)])
    store.book([booking(50, covered=0.0)])
    whole, alone = store.demand("h100", *EVER), store.requests("h100", *EVER)
    assert [(d.start, d.requests) for d in alone] == [(d.start, d.requests) for d in whole]
    assert len(alone) == 41
    assert alone[-1].requests is None
    assert {d.prompt_tokens for d in alone} == {None}


# ---- retention ----


def test_a_chunk_goes_when_its_newest_row_is_too_old_and_its_rows_are_counted(store):
    store.book([booking(0), booking(30)])
    store.seal(START + 2 * HOUR)
    assert store.prune(START + 3 * DAY + 1800) == 0
    assert store.prune(START + 3 * DAY + 1801) == 2
    assert held(store, "chunks") == 0
    store.seal(LATER)
    assert store.prune(START + 91 * DAY + HOUR) >= 3
    assert held(store, "chunks") == 0
    assert (store.replica_bins("h100", *EVER), store.bins("h100", *EVER)) == ((), ())


# ---- kills, defects, and waiting ----


def _seal_until_killed(path, end):
    with HistoryStore(path) as store:
        os.write(end, b".")
        store.seal(LATER, 60.0)
    os._exit(0)


def test_a_kill_while_it_seals_loses_nothing_and_counts_nothing_twice(path):
    with HistoryStore(path) as store:
        store.book(
            [booking(minute, f"r{replica}", finished=minute + 1.0) for minute in range(60) for replica in range(8)]
        )
        expected = store.minutes("h100", *EVER), store.replica_bins("h100", *EVER), store.bins("h100", *EVER)
    chance, between, kills, until = random.Random(5), 0, 0, time.monotonic() + CEILING_SECONDS
    while kills < 12 or (not between and time.monotonic() < until):
        kills += 1
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            _seal_until_killed(path, write_end)
        os.read(read_end, 1)
        time.sleep(chance.uniform(0.0, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read_end)
        os.close(write_end)
        with HistoryStore.open_reader(path) as reader:
            assert (
                reader.minutes("h100", *EVER),
                reader.replica_bins("h100", *EVER),
                reader.bins("h100", *EVER),
            ) == expected
            between += held(reader, "chunks") > 0 and held(reader, "quarters") > 0
    assert between > 0, "no kill came while it sealed"
    with HistoryStore(path) as store:
        store.seal(LATER)
        assert held(store, "minutes") == held(store, "quarters") == held(store, "hours") == 0
        assert (store.minutes("h100", *EVER), store.replica_bins("h100", *EVER), store.bins("h100", *EVER)) == expected


def test_a_row_that_does_not_unpack_stays_and_is_damage(store):
    store.book([booking(0)])
    store._connection.execute("UPDATE minutes SET body = x'00'")
    with pytest.raises(HistoryError, match="minutes holds a row that does not unpack") as raised:
        store.seal(LATER)
    assert raised.value.kind is HistoryErrorKind.CORRUPT
    assert (held(store, "minutes"), held(store, "chunks")) == (1, 0)


def test_a_chunk_that_does_not_unpack_is_damage(store):
    store.book([booking(0)])
    store.seal(LATER)
    store._connection.execute("UPDATE chunks SET body = x'00'")
    with pytest.raises(HistoryError, match="hours holds a chunk that does not unpack"):
        store.bins("h100", *EVER)


def test_a_booking_comes_between_two_pieces(path):
    with HistoryStore(path) as store:
        store.book([booking(minute, f"r{replica}") for minute in range(60) for replica in range(40)])
        booked: list[bool] = []

        def between() -> bool:
            """Asked before every piece."""
            if held(store, "chunks") and not booked:
                thread = threading.Thread(target=store.book, args=([booking(5 * 24 * 60)],))
                thread.start()
                thread.join(CEILING_SECONDS)
                booked.append(not thread.is_alive())
            return False

        store.seal(LATER, 3600.0, between)
        assert booked == [True]
        assert held(store, "minutes") == 1


def test_sealing_ends_when_its_time_is_over_or_the_daemon_stops_and_goes_on_later(store):
    store.book([booking(minute, f"r{replica}") for minute in range(2) for replica in range(3)])
    assert store.seal(LATER, 0.0) == 0
    assert store.seal(LATER, stopping=lambda: True) == 0
    asked = iter((False, True))
    assert store.seal(LATER, stopping=lambda: next(asked)) == 2
    assert held(store, "chunks") == 1
    store.seal(LATER)
    assert held(store, "minutes") == 0


# ---- size ----


def real_days(replicas, days, every=60):
    """Real vLLM minutes of so many days, one every so many seconds, each a little different."""
    made = [one for one in recorded_minutes("steady") if one.covered_seconds > 45]
    chance = random.Random(3)
    for t in range(int(START), int(START + days * DAY), every):
        for replica in range(replicas):
            window = chance.choice(made)
            counters = {
                name: float(chance.randrange(int(2 * abs(value)) + 1)) for name, value in window.counters.items()
            }
            gauges = {
                name: replace(one, integral=one.integral * chance.random()) for name, one in window.gauges.items()
            }
            histograms = {
                name: tuple(
                    replace(
                        part,
                        counts=tuple(float(chance.randrange(int(2 * count) + 1)) for count in part.counts),
                        total=(part.total or 0.0) * chance.random(),
                    )
                    for part in parts
                )
                for name, parts in window.histograms.items()
            }
            moved = replace(
                window,
                start=t + chance.random(),
                end=t + 60.0,
                counters=counters,
                gauges=gauges,
                histograms=histograms,
            )
            placed = load_bins.bin_window(moved, None, f"r{replica}", chance.randrange(3))
            yield MinuteRecord(tier="t", plan_version="v", slice=placed)


def size(store):
    store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return sum(
        store._connection.execute(f"SELECT coalesce(sum(length(body)), 0) FROM {table}").fetchone()[0]
        for table in ("minutes", "quarters", "hours", "chunks")
    )


def test_a_replicas_day_takes_no_more_than_stated(store):
    """Of a day: its quarters for 13 weeks, its minutes for three days of these; three load bins in every quarter."""
    part = 6
    store.book(real_days(1, 1 / part))
    before = size(store)
    store.seal(LATER)
    sealed = dict(store._connection.execute("SELECT sum, sum(length(body)) FROM chunks GROUP BY sum"))
    day = part * (sealed["quarters"] + sealed["minutes"] * 3 / 91)
    assert 20_000 < day < REPLICA_DAY_BYTES
    assert size(store) < 0.4 * before


def test_the_file_stops_growing_once_rows_begin_to_go(path, monkeypatch):
    short = tuple(replace(kind, keep_seconds=(1 if kind.seconds == 60 else 2) * DAY) for kind in SUMS)
    monkeypatch.setattr(store_module, "SUMS", short)
    monkeypatch.setattr(store_module, "KEEP_SECONDS", 2 * DAY)
    sizes: list[int] = []
    with HistoryStore(path) as store:
        every = list(real_days(1, 7, every=3600))
        for day in range(7):
            store.book(every[day * 24 : (day + 1) * 24])
            now = START + (day + 1) * DAY
            store.seal(now)
            store.prune(now)
            store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            sizes.append(path.stat().st_size)
    assert sizes[2] > 1.2 * sizes[0]
    assert max(sizes[5:]) <= 1.1 * max(sizes[2:5])


def test_every_sum_is_sealed_in_whole_rows_and_whole_days():
    for kind in schema.SUMS:
        assert kind.sealed_seconds % kind.seconds == 0
        assert DAY % kind.sealed_seconds == 0
        assert kind.sealed_seconds < kind.keep_seconds


def test_a_question_for_rows_and_chunks_reads_both_by_their_key(store):
    """A table scan of hundred thousands of rows would pass every other test."""
    for kind in SUMS:
        asked = {"tier": "t", "since": 0.0, "until": 1.0, "plan": None}
        plan = store._connection.execute(f"EXPLAIN QUERY PLAN {compaction.statement(kind, True)}", asked).fetchall()
        lines = [line for *_, line in plan]
        assert not any(line.startswith("SCAN") for line in lines), lines


def test_a_file_whose_chunks_are_gone_is_damaged(path):
    HistoryStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE chunks")
    connection.close()
    with pytest.raises(Exception, match="is damaged \\(no table chunks\\)"):
        HistoryStore(path)
