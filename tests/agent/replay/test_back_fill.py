"""Role fleet fills the demand of the weeks before its start from the store while its cycles go on."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_past import book_past
from hostile_store import hangs, serving
from paths import TESTS
from prometheus_server import Sample, prometheus_with_blocks, victoria_metrics
from stored_recordings import HOUR, moved
from waiting import wait_for

from agent.config.config import Config
from agent.config.load import LoadedConfig, load
from agent.config.store import StoreConfig
from agent.daemon.assembly import Assembly, assemble
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.forecasting.history_input import HistoryForecasts
from agent.forecasting.messages import build_request
from agent.history.store import HistoryStore
from agent.prometheus.answers import StoreError, StoreErrorKind
from agent.prometheus.api import StoreApi
from agent.replay.back_fill import fill_demand
from rules.plan.load_bins import build_tier_context
from rules.telemetry.arrivals import MinuteDemand, MinuteSums
from rules.verdicts.verdict import Finding

PLAN = TESTS / "plans" / "cpu-small.yaml"
TIER = "cpu-small"
ENGINES = """{from: engines, selector: 'job="vllm"'}"""
POOLS = """{from: engines, selector: 'job="vllm"', pool_label: pool}"""
AGENTS = "{from: agents}"

RPS, PROMPT, OUTPUT, RUNNING, WAITING = 2.5, 128.0, 64.0, 10.0, 3.0
"""Of each replica: requests a second, tokens a request, requests in the engine and before it."""

LENGTH = 7200.0


def even_load(source: str, begin: float, every: float, until: float = LENGTH) -> Iterator[Sample]:
    """Two hours of two replicas and of a prefill pool, which counts the same requests once more."""
    for replica, pool in (("a", "decode"), ("b", "decode"), ("c", "prefill")):
        for place in range(int(until / every)):
            requests = RPS * place * every
            values = (requests, PROMPT * requests, OUTPUT * requests, RUNNING, WAITING)
            if source == "agents":
                labels = {"tier": TIER, "replica": replica, "pool": pool, "instance": "node:19095", "model": "m"}
                names = ("requests_finished_total", "prompt_tokens_total", "generation_tokens_total")
                gauges = ("requests_running", "requests_waiting")
                both = [(f"sizewatch_{name}", labels) for name in (*names, *gauges)]
            else:
                labels = {"job": "vllm", "instance": replica, "pool": pool, "engine": "0", "model_name": "m"}
                names = (
                    "prompt_tokens_total",
                    "generation_tokens_total",
                    "num_requests_running",
                    "num_requests_waiting",
                )
                both = [("vllm:request_success_total", {**labels, "finished_reason": "stop"})]
                both += [(f"vllm:{name}", labels) for name in names]
            for (name, of), value in zip(both, values, strict=True):
                yield name, of, begin + place * every, value


def loaded(folder: Path, url: str, back_fill: str = "3h", tier: str = ENGINES) -> LoadedConfig:
    (folder / "plan.yaml").write_text(PLAN.read_text())
    (folder / "sizewatch.yaml").write_text(
        f"""
role: fleet
plan: plan.yaml
data_dir: {folder / "history"}
store: {{url: "{url}"}}
tiers: {{{TIER}: {tier}}}
fleet: {{back_fill: {back_fill}}}
forecast: {{enabled: false}}
"""
    )
    return load(folder / "sizewatch.yaml")


def run(assembly: Assembly) -> None:
    """Run the job of the daemon that fills the demand."""
    assembly.fill_demand(time.time())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store whose last two hours are an even load."""
    with victoria_metrics(tmp_path_factory.mktemp("store")) as store:
        store.write(even_load("engines", time.time() // 60 * 60 - LENGTH, 15.0))
        yield store.url


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus with the same long ago, told by agents and by engines, scraped once a minute."""
    samples = [one for source in ("agents", "engines") for one in even_load(source, HOUR, 60.0)]
    with prometheus_with_blocks(tmp_path_factory.mktemp("past"), samples) as found:
        yield found


def fill(keys: LoadedConfig, url: str, folder: Path, begin: float, end: float) -> tuple[int, tuple[MinuteDemand, ...]]:
    """The number of filled minutes, and the demand that the history has then."""
    with HistoryStore(folder / "history.db") as store:
        filled = sum(fill_demand(keys, StoreApi(StoreConfig(url=url)), store, begin, end))
        return filled, store.demand(TIER, 0.0, 4e9)


@pytest.mark.parametrize("tier", [POOLS, AGENTS], ids=["engines", "agents"])
def test_demand_is_that_of_answering_pools(tmp_path: Path, past: str, tier: str) -> None:
    filled, demand = fill(loaded(tmp_path, past, tier=tier), past, tmp_path, HOUR - 3600, HOUR + LENGTH + 3600)

    assert len(demand) == filled > 100
    assert HOUR <= demand[0].start < demand[-1].start < HOUR + LENGTH
    for minute in demand:
        assert minute.requests == pytest.approx(2 * 60 * RPS, rel=0.01)
        assert minute.prompt_tokens == pytest.approx(2 * 60 * RPS * PROMPT, rel=0.01)
        assert minute.generation_tokens == pytest.approx(2 * 60 * RPS * OUTPUT, rel=0.01)


@pytest.mark.server
def test_filled_demand_equals_cycles(tmp_path: Path) -> None:
    with victoria_metrics(tmp_path) as there:
        there.write(s for n in range(14) for s in moved("steady", HOUR + 255.0 * n))
        keys, api = loaded(tmp_path, there.url), StoreApi(StoreConfig(url=there.url))
        _, demand = fill(keys, there.url, tmp_path, HOUR, HOUR + 3600)
        with HistoryStore(tmp_path / "cycles.db") as store:
            book_past(keys, api, store, HOUR, HOUR + 3600)
            cycles = {one.start: one for one in store.demand(TIER, 0.0, 4e9)}

    both = [(one, cycles[one.start]) for one in demand if one.start in cycles]
    assert len(both) > 40
    for name in ("requests", "prompt_tokens", "generation_tokens"):
        ours, theirs = (sum(getattr(pair[place], name) or 0.0 for pair in both) for place in (0, 1))
        assert ours == pytest.approx(theirs, rel=0.1)


def test_minutes_beside_gap_are_left_out(tmp_path: Path) -> None:
    with victoria_metrics(tmp_path) as there:
        for begin in (HOUR, HOUR + 5400.0):
            there.write(even_load("engines", begin, 15.0, until=3600.0))
        _, demand = fill(loaded(tmp_path, there.url, tier=POOLS), there.url, tmp_path, HOUR - 600, HOUR + 9600)

    starts = {one.start - HOUR for one in demand}
    assert {600.0, 3000.0, 6000.0, 8400.0} <= starts
    assert not any(3600.0 <= start < 5400.0 or start < 0.0 or start >= 9000.0 for start in starts)
    assert all(one.requests == pytest.approx(2 * 60 * RPS, rel=0.01) for one in demand)


def test_minutes_of_a_daemon_are_left_alone(tmp_path: Path, past: str) -> None:
    keys = loaded(tmp_path, past, tier=POOLS)
    first, before = fill(keys, past, tmp_path, HOUR + 1800, HOUR + 3600)

    second, demand = fill(keys, past, tmp_path, HOUR, HOUR + 5400)

    assert (first, len(demand)) == (30, first + second)
    assert [one for one in demand if HOUR + 1800 <= one.start < HOUR + 3600] == list(before)
    assert fill(keys, past, tmp_path, HOUR + 600, HOUR + 5400)[0] == 0


def test_demand_is_filled_before_start(tmp_path: Path, url: str) -> None:
    assembly = assemble(loaded(tmp_path, url))
    run(assembly)
    assembly.close(time.time())

    with HistoryStore.open_reader(tmp_path / "history" / "history.db") as store:
        demand = store.demand(TIER, 0.0, 4e9)
        (event,) = [event for event in store.events(0.0) if event.kind == "back_fill"]
        assert event.text == f"demand of the 3h before the start was filled from the store: {len(demand)} min"
        assert len(demand) > 90
        assert not store.spans(Finding, 0.0)
        assert not store.bins(TIER, 0.0, 4e9)


def test_second_run_fills_nothing(tmp_path: Path, url: str) -> None:
    for _ in range(2):
        assembly = assemble(loaded(tmp_path, url, back_fill="1h"))
        run(assembly)
        run(assembly)
        assembly.close(time.time())

    with HistoryStore.open_reader(tmp_path / "history" / "history.db") as store:
        assert len([event for event in store.events(0.0) if event.kind == "back_fill"]) == 1


def test_stop_does_not_wait_for_past(tmp_path: Path) -> None:
    with serving() as store:
        store.act = hangs
        daemon = Daemon(loaded(tmp_path, store.url, back_fill="90d"), DaemonOptions(web=lambda loaded: None))
        daemon.start()
        assert wait_for(lambda: any("query_range" in path for path, *_ in store.asked)), store.asked

        daemon.close()

    with HistoryStore.open_reader(tmp_path / "history" / "history.db") as history:
        assert not history.demand(TIER, 0.0, 4e9)


def test_absent_store_costs_only_the_past(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assembly = assemble(loaded(tmp_path, url, back_fill="1h"))
    assert assembly.back_fill is not None
    with monkeypatch.context() as away:
        away.setattr(StoreApi, "query_range", refuse)
        run(assembly)
    assert "demand back-fill paused" in caplog.text
    assert assembly.back_fill.minutes == 0
    assembly.loop.run_cycle()
    run(assembly)
    assert assembly.back_fill.minutes > 30
    assembly.close(time.time())


def refuse(*given: object) -> None:
    raise StoreError(StoreErrorKind.AWAY, "store", "connection refused")


def test_a_reload_continues_with_what_is_left(tmp_path: Path, url: str) -> None:
    first = assemble(loaded(tmp_path, url, back_fill="90d"))
    second = assemble(loaded(tmp_path, url, back_fill="3h"), first)
    second.take_state(first, time.time(), "a test")
    run(first)
    run(second)
    second.close(time.time())

    assert second.back_fill is not None
    assert first.back_fill.minutes == 0 < second.back_fill.minutes


def test_no_back_fill_where_none_is_wanted(tmp_path: Path, url: str) -> None:
    assembly = assemble(loaded(tmp_path, url, back_fill="0s"))
    assembly.close(time.time())

    assert assembly.back_fill is None


def test_forecast_learns_filled_demand(tmp_path: Path) -> None:
    path, now = tmp_path / "history.db", HOUR + 12 * 86_400.0
    flat = {"covered_seconds": 60.0, "expected_seconds": 60.0, "requests_seconds": 60.0, "requests": 600.0}
    forecasts = HistoryForecasts()

    def fill_days(begin: float, end: float) -> None:
        minutes = (MinuteSums(start=t, first=t, last=t + 60.0, **flat) for t in range(round(begin), round(end), 60))
        with HistoryStore(path) as store:
            store.fill_demand(TIER, minutes)

    def ask(filled: int) -> str:
        request = build_request(build_tier_context(TIER, None), (), Config(), path, now, filled)
        return forecasts.respond(request).gap

    fill_days(now - 3600.0, now)
    young = ask(0)
    fill_days(HOUR, now - 3600.0)

    assert young
    assert ask(0) == young
    assert not ask(17_000)
