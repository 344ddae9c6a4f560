"""The past of a store in an embedded history, once, however often and wherever it is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from past_stores import HOUR, PastStore, moved
from paths import TESTS
from stored_recordings import MemoryStore

from agent.config.files import load_plan
from agent.config.load import LoadedConfig, parse_config
from agent.history.store import HistoryStore
from agent.history.write_buffer import MinuteRecord
from agent.replay.back_fill_writer import BackFillProgress, Stretch, fill_history
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import readings, windows

PLAN = TESTS / "plans" / "cpu-small.yaml"
TIER = "cpu-small"
SPAN = (HOUR, HOUR + 10_800)


def loaded() -> LoadedConfig:
    keys = {"from": "engines", "selector": 'job="vllm"'}
    config = parse_config({"role": "fleet", "store": {"url": "http://127.0.0.1:1"}, "tiers": {TIER: keys}})
    return LoadedConfig(path=Path("sizewatch.yaml"), config=config, plan=load_plan(PLAN), warnings=())


@pytest.fixture(scope="module")
def past() -> MemoryStore:
    """Three hours in which the engine is in trouble for minutes, once over a full hour, and steady in between."""
    parts = [("steady", 600.0), ("cascade_fast", 3500.0), ("steady", 5000.0), ("cascade_fast", 8000.0)]
    return MemoryStore.of(s for name, offset in parts for s in moved(name, HOUR + offset))


def held(store: HistoryStore) -> list[tuple[object, ...]]:
    """All that a history holds of a tier."""
    minutes = store.minutes(TIER, 0.0, 4e9)
    hours = store.bins(TIER, 0.0, 4e9)
    # For how long a rule could not judge is not remembered by who was stopped.
    findings = [e for e in store.findings(0.0) if e.rule != "UnknownTooLong"]
    several: tuple[BinnedWindow, ...] = (*minutes, *store.replica_bins(TIER, 0.0, 4e9), *hours)
    return [
        *(
            (one.replica, one.bin, one.window.start, one.window.end, sorted(one.window.counters.items()))
            for one in several
        ),
        *store.demand(TIER, 0.0, 4e9),
        *((e.rule, str(e.subject), e.started_at, e.ended_at, e.transitions) for e in findings),
        *store.events(0.0),
    ]


def test_a_history_is_filled_with_all_that_a_daemon_keeps(tmp_path: Path, past: MemoryStore) -> None:
    with HistoryStore(tmp_path / "history.db") as store:
        found = fill_history(loaded(), PastStore(past), store, SPAN)

        minutes = store.minutes(TIER, 0.0, 4e9)
        assert found.minutes == len(minutes) > 12
        version = load_bins.build_tier_context(TIER, load_plan(PLAN).tiers[TIER])
        whole = readings.read_all(windows.sum_windows(one.window for one in store.bins(TIER, 0.0, 4e9)), version.basis)
        assert whole == readings.read_all(windows.sum_windows(one.window for one in minutes), version.basis)
        assert len(store.plan_versions(TIER, 0.0, 4e9)) == 1
        assert len(store.demand(TIER, 0.0, 4e9)) > 10
        assert [e.rule for e in store.findings(0.0)].count("KvCacheCascade") == 2
        assert all(e.ended_at is not None for e in store.findings(0.0))
        assert {event.kind for event in store.events(0.0)} == {"cold_start", "gone"}


def test_what_was_booked_is_left_alone(tmp_path: Path, past: MemoryStore) -> None:
    with HistoryStore(tmp_path / "history.db") as store:
        fill_history(loaded(), PastStore(past), store, SPAN)
        before = held(store)

        again = fill_history(loaded(), PastStore(past), store, SPAN)

        assert again.minutes == 0
        assert held(store) == before


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_what_a_store_that_went_away_left_out_is_filled_in_later(
    tmp_path: Path, past: MemoryStore, fails_at: int
) -> None:
    with HistoryStore(tmp_path / "whole.db") as whole, HistoryStore(tmp_path / "history.db") as store:
        fill_history(loaded(), PastStore(past), whole, SPAN)

        first = fill_history(loaded(), PastStore(past, fails_at=fails_at), store, SPAN)
        second = fill_history(loaded(), PastStore(past), store, SPAN)

        assert "connection refused" in first.error
        assert (first.minutes + second.minutes, second.error) == (len(whole.minutes(TIER, 0.0, 4e9)), "")
        assert held(store) == held(whole)


def test_what_was_interrupted_goes_on_where_it_was(tmp_path: Path, past: MemoryStore) -> None:
    def interrupted(piece: Stretch, so_far: BackFillProgress) -> None:
        raise KeyboardInterrupt

    with HistoryStore(tmp_path / "whole.db") as whole, HistoryStore(tmp_path / "history.db") as store:
        fill_history(loaded(), PastStore(past), whole, SPAN)

        with pytest.raises(KeyboardInterrupt):
            fill_history(loaded(), PastStore(past), store, SPAN, told=interrupted)
        after_one_hour = [e for e in store.findings(0.0) if e.rule == "KvCacheCascade"]
        fill_history(loaded(), PastStore(past), store, SPAN)

        (cascade,) = [e for e in store.findings(0.0) if e.rule == "KvCacheCascade" and e.started_at < HOUR + 5000]
        assert [e.ended_at for e in after_one_hour] == [HOUR + 3600]
        assert cascade.started_at < HOUR + 3600 < (cascade.ended_at or 0.0)
        assert held(store) == held(whole)


def test_what_began_long_before_the_interruption_goes_on_as_one(
    tmp_path: Path, past: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.replay.back_fill_writer.LEAD_SECONDS", -60.0)

    with HistoryStore(tmp_path / "history.db") as store:
        fill_history(loaded(), PastStore(past, fails_at=1), store, SPAN)
        fill_history(loaded(), PastStore(past), store, SPAN)

        (cascade,) = [
            e for e in store.findings(0.0) if e.rule == "KvCacheCascade" and 3300 < e.started_at - HOUR < 4000
        ]
        assert cascade.started_at < HOUR + 3600 < (cascade.ended_at or 0.0)


def test_minutes_of_a_daemon_are_not_counted_twice(tmp_path: Path, past: MemoryStore) -> None:
    with HistoryStore(tmp_path / "whole.db") as whole, HistoryStore(tmp_path / "history.db") as store:
        fill_history(loaded(), PastStore(past), whole, SPAN)
        every = whole.minutes(TIER, 0.0, 4e9)
        version = whole.plan_versions(TIER, 0.0, 4e9)[0]
        daemon = [one for one in every if HOUR + 5000 <= one.window.start < HOUR + 6000]
        store.book(MinuteRecord(tier=TIER, plan_version=version, slice=one) for one in daemon)

        found = fill_history(loaded(), PastStore(past), store, SPAN)

        assert found.minutes == len(every) - len(daemon)
        assert [one.window for one in store.minutes(TIER, 0.0, 4e9)] == [one.window for one in every]


def test_the_newest_day_comes_first_and_a_day_runs_forward(tmp_path: Path) -> None:
    midnight = HOUR // 86_400 * 86_400
    store_of = MemoryStore.of(s for day in (0, 1) for s in moved("steady", midnight + day * 86_400 + 3000))
    told: list[Stretch] = []
    with HistoryStore(tmp_path / "history.db") as store:
        span = (midnight + 79_200.0, midnight + 86_400 + 7200)
        fill_history(loaded(), PastStore(store_of), store, span, told=lambda piece, so_far: told.append(piece))

    assert [(begin - midnight) / 3600 for begin, _ in told] == [24, 25, 22, 23]


def test_a_short_pause_of_the_daemon_is_no_hole(tmp_path: Path, past: MemoryStore) -> None:
    with HistoryStore(tmp_path / "whole.db") as whole, HistoryStore(tmp_path / "history.db") as store:
        fill_history(loaded(), PastStore(past), whole, SPAN)
        every = whole.minutes(TIER, HOUR + 600, HOUR + 840)
        store.book(MinuteRecord(tier=TIER, plan_version="", slice=one) for one in (every[0], every[3]))

        fill_history(loaded(), PastStore(past), store, (HOUR + 600, HOUR + 840))

        assert len(store.minutes(TIER, 0.0, 4e9)) == 2
