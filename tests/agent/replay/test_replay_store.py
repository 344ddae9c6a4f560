"""`sizewatch replay` of a store: which time, which series, what it says where the store has nothing or fails."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import click
import hostile_store
import pytest
from paths import TESTS
from prometheus_server import victoria_metrics
from stored_recordings import HOUR, RECORDINGS, MemoryStore, PastStore, engine_samples, moved

from agent.cli import main
from agent.cli.replay import moment, parameters
from agent.config.files import load_plan
from agent.config.load import LoadedConfig, parse_config
from agent.prometheus.api import StoreApi
from agent.replay.replay import Replay, replay_store
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import Finding

Captured = pytest.CaptureFixture[str]

PLAN = TESTS / "plans" / "cpu-small.yaml"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with victoria_metrics(tmp_path_factory.mktemp("store")) as store:
        store.write(engine_samples("cascade_fast"))
        yield store.url


def span() -> list[str]:
    times = [t for _, _, t, _ in engine_samples("cascade_fast")]
    return ["--from", f"{min(times) - 1:.3f}", "--to", f"{max(times) + 1:.3f}"]


def loaded() -> LoadedConfig:
    keys = {"from": "engines", "selector": 'job="vllm"'}
    config = parse_config({"role": "fleet", "store": {"url": "http://127.0.0.1:1"}, "tiers": {"cpu-small": keys}})
    return LoadedConfig(path=Path("sizewatch.yaml"), config=config, plan=load_plan(PLAN), warnings=())


def configured(folder: Path, url: str) -> list[str]:
    """The words for a configuration with the engine's own series in the store."""
    series = {"from": "engines", "selector": 'job="vllm"'}
    config = {"role": "fleet", "store": {"url": url}, "tiers": {"cpu-small": series}}
    (folder / "sizewatch.yaml").write_text(json.dumps(config))
    return ["replay", "-c", str(folder / "sizewatch.yaml")]


def replayed(store: PastStore, since: float, until: float) -> Replay:
    return replay_store(loaded(), cast("StoreApi", store), since, until, 60.0)


def cascade(begin: float = HOUR) -> MemoryStore:
    return MemoryStore.of(moved("cascade_fast", begin))


def test_store_replay_prints_like_recording(url: str, tmp_path: Path, capsys: Captured) -> None:
    assert main.main(["replay", str(RECORDINGS / "cascade_fast"), "--plan", str(PLAN)]) == 1
    _, *expected = capsys.readouterr().out.splitlines()

    assert main.main([*configured(tmp_path, url), "--plan", str(PLAN), *span()]) == 1
    head, *found = capsys.readouterr().out.splitlines()

    assert found == expected
    assert head.startswith(f"{url} from 20")
    assert head.endswith(": 3:30 of cpu-small")


def test_empty_time_of_store_exits_3(url: str, tmp_path: Path, capsys: Captured) -> None:
    assert main.main([*configured(tmp_path, url), "--from", "1000", "--to", "9000"]) == 3

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "sizewatch replay: cpu-small: the store has nothing of it in that time\n"


def test_a_partial_answer_is_no_answer(tmp_path: Path, capsys: Captured) -> None:
    body = json.dumps(
        {"status": "success", "warnings": ["store-2 is gone"], "data": {"resultType": "matrix", "result": []}}
    )
    with hostile_store.serving() as server:
        server.act = lambda handler: hostile_store.give(handler, body.encode())

        assert main.main([*configured(tmp_path, server.url), "--from", "1000", "--to", "9000"]) == 3

    said = capsys.readouterr()
    assert said.out == ""
    assert "answered with a warning" in said.err
    assert "store-2" not in said.err
    assert "the replay ends at 1970-01-01" in said.err


def test_lost_store_ends_replay_there() -> None:
    store = PastStore(cascade(HOUR + 60), fails_at=20)

    found = replayed(store, HOUR, HOUR + 9000)

    assert "connection refused; the replay ends at " in found.cut_short
    assert [e.rule for e in found.ended if hasattr(e, "worst")].count("KvCacheCascade") == 1
    assert len(store.asked) == 21


def test_store_that_refuses_all_ends_replay() -> None:
    assert "too much at once" in replayed(PastStore(cascade(), longest=1.0), HOUR, HOUR + 3600).cut_short


def test_nothing_before_since_is_read() -> None:
    store = PastStore(cascade())

    found = replayed(store, HOUR + 60, HOUR + 200)

    assert min(start for start, _ in store.asked) == HOUR + 60
    assert HOUR + 60 < found.start < found.end <= HOUR + 200


def test_missing_samples_are_gap_without_finding() -> None:
    kept = [s for s in moved("steady", HOUR) if not HOUR + 60 < s[2] < HOUR + 130]
    store = PastStore(MemoryStore.of(kept))

    found = replayed(store, HOUR - 1, HOUR + 240)

    tier = [s.window for s in found.windows if s.replica is None]
    assert [w.gaps.get("*") for w in tier] == [None, Gap.SCRAPE_FAILED, None, None]
    assert (tier[1].start - HOUR, tier[1].end - HOUR) == pytest.approx((55, 130), abs=6)
    assert not [e for e in found.ended if isinstance(e, Finding) and e.rule in ("TargetDown", "TierDown")]


def test_gone_replica_is_not_missed_forever() -> None:
    first = [one for one in moved("steady", HOUR) if one[2] < HOUR + 60]
    both = [*moved("steady", HOUR), *((n, {**labels, "instance": "b"}, t, v) for n, labels, t, v in first)]
    again = [s for part in range(1, 5) for s in moved("steady", HOUR + part * 245)]
    store = PastStore(MemoryStore.of([*both, *again]))

    found = replayed(store, HOUR - 1, HOUR + 1200)

    expected = sum(s.window.expected_seconds for s in found.windows if s.replica == "b")
    assert 60 <= expected <= 60 + 300 + 120


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1700000000", 1_700_000_000.0),
        ("1700000000.5", 1_700_000_000.5),
        ("7", 7.0),
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14 23:13:20+01:00", 1_700_000_000.0),
        # Without a zone it is local time.
        ("2023-11-15T07:13:20", 1_700_000_000.0),
    ],
)
def test_time_formats_are_read(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert moment(text) == seconds
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("text", "days"), [("-7d", 7), ("7d", 7), ("-2w", 14), ("-500ms", 0), ("-1.5h", 1.5 / 24)])
def test_relative_time_counts_from_now(text: str, days: float) -> None:
    parsed = click.Command("replay", params=[*parameters()]).make_context("replay", ["--from", text])
    assert parsed.params["since"] == pytest.approx(time.time() - days * 86_400, abs=5)


@pytest.mark.parametrize("text", ["yesterday", "", "-7", "2023-13-45", "1e400", "-inf", "9" * 400])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time"):
        moment(text)
