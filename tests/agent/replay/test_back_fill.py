"""Role fleet fills an empty history from the store while its turns go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_store import hangs, serving
from past_stores import moved
from paths import TESTS
from store_servers import victoria_metrics
from waiting import wait_for

from agent.config.load import LoadedConfig, load
from agent.daemon.assembly import Assembly
from agent.daemon.factory import assemble
from agent.history.store import HistoryStore

PLAN = TESTS / "plans" / "cpu-small.yaml"
TIER = "cpu-small"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    now = time.time()
    with victoria_metrics(tmp_path_factory.mktemp("store")) as store:
        store.write((s for name, ago in (("cascade_fast", 7000), ("steady", 5000)) for s in moved(name, now - ago)))
        yield store.url


def loaded(folder: Path, url: str, back_fill: str = "3h", turn: str = "60s") -> LoadedConfig:
    (folder / "plan.yaml").write_text(PLAN.read_text())
    (folder / "sizewatch.yaml").write_text(
        f"""
role: fleet
plan: plan.yaml
data_dir: {folder / "history"}
store: {{url: "{url}"}}
tiers: {{{TIER}: {{from: engines, selector: 'job="vllm"'}}}}
fleet: {{back_fill: {back_fill}, turn: {turn}}}
forecast: {{enabled: false}}
"""
    )
    return load(folder / "sizewatch.yaml")


def wait(assembly: Assembly, word: str) -> str:
    """What the back-fill says once it says this."""
    assert assembly.back_fill is not None
    fill = assembly.back_fill
    assert wait_for(lambda: word in fill.text), fill.text
    return fill.text


def test_an_empty_history_is_filled_and_the_timeline_says_so(tmp_path: Path, url: str) -> None:
    assembly = assemble(loaded(tmp_path, url))
    said = wait(assembly, "were booked from the store")
    assembly.loop.run_cycle()
    assembly.close(time.time())

    with HistoryStore.open_reader(tmp_path / "history" / "history.db") as store:
        minutes = store.minutes(TIER, 0.0, 4e9)
        assert said == f"{len(minutes)} minutes of replicas of the 3h before the start were booked from the store"
        assert len(minutes) > 7
        assert "KvCacheCascade" in {e.rule for e in store.findings(0.0)}
        assert "back_fill" in {event.kind for event in store.events(0.0)}


def test_what_a_daemon_knows_of_days_is_what_was_filled_in(tmp_path: Path, url: str) -> None:
    assembly = assemble(loaded(tmp_path, url))
    before = assembly.loop.state.minutes[TIER].budget
    wait(assembly, "were booked from the store")
    assembly.close(time.time())

    assert assembly.loop.state.minutes[TIER].budget != before


def test_a_second_start_has_nothing_to_fill(tmp_path: Path, url: str) -> None:
    first = assemble(loaded(tmp_path, url))
    wait(first, "were booked from the store")
    first.close(time.time())

    second = assemble(loaded(tmp_path, url))
    said = wait(second, "were booked from the store")
    second.close(time.time())

    assert said.startswith("0 minutes")


def test_a_daemon_that_ends_does_not_wait_for_its_past(tmp_path: Path) -> None:
    with serving() as store:
        store.act = hangs
        assembly = assemble(loaded(tmp_path, store.url, back_fill="90d"))
        assert wait_for(lambda: store.asked)

        assembly.close(time.time())

        assert len(store.asked) == 1
    with HistoryStore.open_reader(tmp_path / "history" / "history.db") as history:
        assert not history.minutes(TIER, 0.0, 4e9)


def test_a_store_that_is_away_costs_nothing_but_the_past(tmp_path: Path) -> None:
    assembly = assemble(loaded(tmp_path, "http://127.0.0.1:1"))
    said = wait(assembly, "waits")
    assembly.loop.run_cycle()
    assembly.close(time.time())

    assert "connection refused" in said


def test_a_configuration_that_fills_the_same_lets_it_go_on(tmp_path: Path, url: str) -> None:
    first = assemble(loaded(tmp_path, url, back_fill="90d"))
    same = assemble(loaded(tmp_path, url, back_fill="90d"), first)
    same.take_state(first, time.time())
    other = assemble(loaded(tmp_path, url, back_fill="3h"), same)
    other.take_state(same, time.time())
    try:
        assert same.back_fill is first.back_fill
        assert other.back_fill is not same.back_fill
        wait(other, "were booked from the store")
    finally:
        other.close(time.time())


def test_no_back_fill_where_none_is_wanted(tmp_path: Path, url: str) -> None:
    assembly = assemble(loaded(tmp_path, url, back_fill="0s"))
    assembly.close(time.time())

    assert assembly.back_fill is None
