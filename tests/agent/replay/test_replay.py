"""The replay end to end: its JSON (the contract of the design), its exit codes, and recordings that are broken."""

import gzip
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import hostile_store
import pytest
import recorded
import yaml
from paths import TESTS
from prometheus_server import victoria_metrics
from stored_recordings import HOUR, RECORDINGS, MemoryStore, PastStore, engine_samples, moved

from agent.cli.main import main
from agent.cli.replay import moment, parameters
from agent.config.files import load_plan
from agent.config.load import LoadedConfig, parse_config
from agent.prometheus.api import StoreApi
from agent.replay.replay import Replay, replay, replay_store
from agent.sources.recording import load
from rules.engines.several import MODELS
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import Finding

Captured = pytest.CaptureFixture[str]

PLAN = recorded.PLANS / "cpu-small.yaml"


def replayed(name: str, step: float = 60.0) -> Replay:
    recording, problems = load(recorded.folder(name))
    return replay(recording, load_plan(PLAN), step, problems)


def document(capsys: Captured, folder: Path, *options: str, code: int | None = None) -> dict[str, Any]:
    found = main(["replay", str(folder), "--plan", str(PLAN), "--format", "json", *options])
    assert code is None or found == code
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def lines(name: str, count: int | None = None) -> list[bytes]:
    with gzip.open(recorded.folder(name) / "metrics.jsonl.gz", "rb") as stream:
        return stream.readlines()[:count]


def folder_of(path: Path, *targets: dict[str, str], **files: bytes) -> Path:
    for file, content in files.items():
        (path / f"{file}.jsonl.gz").write_bytes(content)
    entries = targets or tuple(
        {"file": f"{f}.jsonl.gz", "tier": "cpu-small", "replica": f, "engine": "vllm"} for f in files
    )
    (path / "recording.yaml").write_text(yaml.safe_dump({"schema": 1, "name": "broken", "targets": list(entries)}))
    return path


def packed(some: list[bytes]) -> bytes:
    return gzip.compress(b"".join(some))


def finished(found: Replay) -> float:
    return sum(shown.window.counters.get("requests_finished", 0.0) for shown in found.windows if shown.replica)


def test_recorded_cascade_is_in_document(capsys: Captured) -> None:
    told = document(capsys, recorded.folder("kv_cascade"))
    origin = told["windows"][0]["start"]
    (cascade,) = [v for v in told["verdicts"] if v["rule"] == "KvCacheCascade"]
    assert (cascade["replica"], cascade["status"], cascade["certainty"]) == ("cpu-small-0", "critical", "certain")
    assert [(round(t["t"] - origin), t["stage"], t["status"], t["certainty"]) for t in cascade["transitions"]] == [
        (85, 1, "warning", "likely"),
        (100, 3, "critical", "likely"),
        (105, 3, "critical", "certain"),
        (110, 4, "critical", "certain"),
        (275, 0, "ok", "certain"),
    ]
    assert round(cascade["ended_at"] - origin) == 275


def test_windows_follow_step_and_replica() -> None:
    found = replayed("routing", 30.0)
    replicas = {w.replica for w in found.windows}
    assert replicas == {None, "cpu-small-0", "cpu-small-1", "cpu-small-2"}
    whole = [w.window for w in found.windows if w.replica is None]
    assert len(whole) == math.ceil((found.end - found.start) / 30.0)
    for cell in whole:
        assert cell.span <= 30.0 + 6
    parts = [w.window for w in found.windows if w.replica is not None]
    counted = sum(w.counters["requests_finished"] for w in parts)
    assert counted == sum(w.counters["requests_finished"] for w in whole) > 500


def test_judgement_does_not_depend_on_step() -> None:
    fine, coarse = replayed("kv_cascade", 5.0), replayed("kv_cascade", 300.0)
    assert len(fine.windows) > len(coarse.windows)
    assert fine.ended == coarse.ended
    assert fine.rule_states == coarse.rule_states


def test_no_number_is_invented_across_a_restart() -> None:
    found = replayed("restart", 5.0)
    gaps = [w.window for w in found.windows if w.replica is not None and w.window.coverage == 0]
    assert {gap for w in gaps for gap in w.gaps.values()} >= {"scrape_failed", "restarted"}
    assert all(not w.histograms and "requests_finished" not in w.counters for w in gaps)
    down = [e for e in found.ended if isinstance(e, Finding) and e.rule == "TargetDown"]
    assert len(down) == 2


def test_replay_without_plan_compares_nothing(capsys: Captured) -> None:
    assert main(["replay", str(recorded.folder("steady"))]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "TtftDivergence, TpotDivergence, ItlDivergence" in text
    assert "not in plan (the plan has no benchmark curve for" in text
    assert main(["replay", str(recorded.folder("steady")), "--plan", str(recorded.PLANS / "guide-h100.yaml")]) == 0
    assert "tier cpu-small is not in the plan: it is compared with nothing" in capsys.readouterr().err


def test_recording_without_scrape_exits_3(tmp_path: Path, capsys: Captured) -> None:
    empty = folder_of(tmp_path, a=packed([]))
    assert main(["replay", str(empty), "--plan", str(PLAN)]) == 3
    assert capsys.readouterr().out.startswith("broken: holds no scrape")
    assert document(capsys, empty, code=3)["windows"] == []


@pytest.mark.parametrize("index", ["targets: []", "targets: [1, 2", "- a\n"])
def test_folder_without_recording_exits_2(index: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "recording.yaml").write_text(index)
    assert main(["replay", str(tmp_path), "--plan", str(PLAN)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert str(tmp_path) in told.err
    assert "Traceback" not in told.err


def test_missing_file_costs_only_its_replica(tmp_path: Path, capsys: Captured) -> None:
    here = {"file": "here.jsonl.gz", "tier": "cpu-small", "replica": "here", "engine": "vllm"}
    folder = folder_of(
        tmp_path, {**here, "file": "gone.jsonl.gz", "replica": "gone"}, here, here=packed(lines("steady_quiet", 20))
    )
    assert main(["replay", str(folder), "--plan", str(PLAN), "--format", "json"]) == 0
    told = capsys.readouterr()
    assert told.err == f"sizewatch replay: {folder}/gone.jsonl.gz is missing\n"
    assert {w["replica"] for w in json.loads(told.out)["windows"]} == {None, "here"}
    assert json.loads(told.out)["problems"] == [f"{folder}/gone.jsonl.gz is missing"]


@pytest.mark.parametrize(
    "broken",
    [
        b"{not json\n",
        b"\xff\xfe\n",
        b'{"text": "x"}\n',
        b'{"t": NaN, "text": "x"}\n',
        b'{"t": 1e999, "text": "x"}\n',
        b'{"t": 1e12, "text": "x"}\n',
        b'{"t": 5, "error": "x"}\n',
        b'{"t": 9999999999}\n',
        b'{"t": 9999999999, "text": 1}\n',
        b"[1]\n",
    ],
)
def test_broken_line_costs_only_itself(broken: bytes, tmp_path: Path) -> None:
    good = lines("steady_quiet", 20)
    recording, problems = load(folder_of(tmp_path, a=packed([*good[:10], broken, *good[10:]])))
    found = replay(recording, load_plan(PLAN), 60.0, problems)
    whole, _ = load(folder_of(tmp_path, a=packed(good)))
    assert found.problems == [f"{tmp_path}/a.jsonl.gz: line 11: is no scrape that is later than the line before"]
    assert found.windows == replay(whole, load_plan(PLAN)).windows


def test_several_models_are_named(tmp_path: Path) -> None:
    some = lines("steady_quiet", 3)
    others = packed([line.replace(b"small-llama", b"other") for line in some])
    recording, _ = load(folder_of(tmp_path, a=packed(some), b=others))
    assert replay(recording, None).problems == [f"cpu-small: {MODELS.format('other and small-llama')}"]


def test_truncated_file_is_used_to_cut(tmp_path: Path, capsys: Captured) -> None:
    whole = packed(lines("steady_quiet"))
    folder = folder_of(tmp_path, a=whole[: len(whole) // 2])
    told = document(capsys, folder)
    assert len([w for w in told["windows"] if w["replica"] == "a"]) == 2
    (problem,) = told["problems"]
    assert problem.startswith(f"{folder}/a.jsonl.gz: cannot be read further: ")


def test_unusable_page_is_failed_scrape(tmp_path: Path) -> None:
    good = lines("steady_quiet", 20)
    cut = json.loads(good[10])
    cut["text"] = cut["text"][: len(cut["text"]) // 2]
    recording, _ = load(folder_of(tmp_path, a=packed([*good[:10], json.dumps(cut).encode() + b"\n", *good[11:]])))
    found = replay(recording, load_plan(PLAN), 5.0)
    (problem,) = found.problems
    assert problem.startswith(f"{tmp_path}/a.jsonl.gz: page at {cut['t']:.3f}: ")
    # The scrape is lost, its requests are booked with the next.
    assert [w.window.coverage == 0 for w in found.windows if w.replica].count(True) == 1
    whole, _ = load(folder_of(tmp_path, a=packed(good)))
    assert finished(found) == finished(replay(whole, None)) > 0


def test_recorded_error_explains_down_target(tmp_path: Path) -> None:
    good = lines("steady_quiet", 10)
    last = json.loads(good[-1])["t"]
    failed = [json.dumps({"t": last + 5 * n, "error": "ConnectionRefusedError"}).encode() + b"\n" for n in (1, 2, 3)]
    recording, _ = load(folder_of(tmp_path, a=packed([*good, *failed])))
    down = next(s.finding for s in replay(recording, None).rule_states if s.finding and s.result.rule == "TargetDown")
    assert down.worst.sentence == "No usable metrics page for 15 s; 3 scrapes in a row failed: connection refused"


CHURN = TESTS / "residency" / "kv_churn"


def reading(capsys: Captured, folder: Path, product: str, weights: str = "bf16") -> dict[str, Any]:
    plan, text = folder / "plan.yaml", (TESTS / "residency" / "plan.yaml").read_text()
    plan.write_text(text.replace("product: CPU", f"product: {product}").replace("weights: bf16", f"weights: {weights}"))
    main(["replay", str(CHURN), "--plan", str(plan), "--format", "json"])
    windows = json.loads(capsys.readouterr().out)["windows"]
    found: dict[str, Any] = windows[-2]["readings"]
    return found


def test_mfu_and_mbu_are_shares_of_peak(capsys: Captured, tmp_path: Path) -> None:
    h100 = reading(capsys, tmp_path, "NVIDIA H100 80GB HBM3")
    a100 = reading(capsys, tmp_path, "NVIDIA A100-SXM4-80GB")
    assert 0 < h100["mfu"]["value"] < h100["mbu"]["value"] < 0.01
    assert a100["mfu"]["value"] == pytest.approx(h100["mfu"]["value"] * 990 / 312)
    assert a100["mbu"]["value"] == pytest.approx(h100["mbu"]["value"] * 3.35 / 2.04)


def test_unknown_product_has_no_mfu(capsys: Captured, tmp_path: Path) -> None:
    for product in ("CPU", "NVIDIA H200 NVL", "NVIDIA H100 PCIe"):
        found = reading(capsys, tmp_path, product)
        assert (found["mfu"]["gap"], found["mbu"]["gap"]) == ("not_in_plan", "not_in_plan")
    fp8 = reading(capsys, tmp_path, "NVIDIA H100 80GB HBM3", "fp8")
    assert fp8["mfu"]["gap"] == "not_in_plan"
    assert fp8["mbu"]["value"] > 0


# ---- replay of a store: which time, which series, what is said where it has nothing or fails ----


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


def replayed_store(store: PastStore, since: float, until: float) -> Replay:
    return replay_store(loaded(), cast("StoreApi", store), since, until, 60.0)


def cascade(begin: float = HOUR) -> MemoryStore:
    return MemoryStore.of(moved("cascade_fast", begin))


def test_store_replay_prints_like_recording(url: str, tmp_path: Path, capsys: Captured) -> None:
    assert main(["replay", str(RECORDINGS / "cascade_fast"), "--plan", str(PLAN)]) == 1
    _, *expected = capsys.readouterr().out.splitlines()

    assert main([*configured(tmp_path, url), "--plan", str(PLAN), *span()]) == 1
    head, *found = capsys.readouterr().out.splitlines()

    assert found == expected
    assert head.startswith(f"{url} from 20")
    assert head.endswith(": 3:30 of cpu-small")


def test_empty_time_of_store_exits_3(url: str, tmp_path: Path, capsys: Captured) -> None:
    assert main([*configured(tmp_path, url), "--from", "1000", "--to", "9000"]) == 3

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "sizewatch replay: cpu-small: the store has nothing of it in that time\n"


def test_a_partial_answer_is_no_answer(tmp_path: Path, capsys: Captured) -> None:
    body = json.dumps(
        {"status": "success", "warnings": ["store-2 is gone"], "data": {"resultType": "matrix", "result": []}}
    )
    with hostile_store.serving() as server:
        server.act = lambda handler: hostile_store.give(handler, body.encode())

        assert main([*configured(tmp_path, server.url), "--from", "1000", "--to", "9000"]) == 3

    said = capsys.readouterr()
    assert said.out == ""
    assert "answered with a warning" in said.err
    assert "store-2" not in said.err
    assert "the replay ends at 1970-01-01" in said.err


def test_lost_store_ends_replay_there() -> None:
    store = PastStore(cascade(HOUR + 60), fails_at=20)

    found = replayed_store(store, HOUR, HOUR + 9000)

    assert "connection refused; the replay ends at " in found.cut_short
    assert [e.rule for e in found.ended if hasattr(e, "worst")].count("KvCacheCascade") == 1
    assert len(store.asked) == 21


def test_store_that_refuses_all_ends_replay() -> None:
    assert "too much at once" in replayed_store(PastStore(cascade(), longest=1.0), HOUR, HOUR + 3600).cut_short


def test_nothing_before_since_is_read() -> None:
    store = PastStore(cascade())

    found = replayed_store(store, HOUR + 60, HOUR + 200)

    assert min(start for start, _ in store.asked) == HOUR + 60
    assert HOUR + 60 < found.start < found.end <= HOUR + 200


def test_missing_samples_are_gap_without_finding() -> None:
    kept = [s for s in moved("steady", HOUR) if not HOUR + 60 < s[2] < HOUR + 130]
    store = PastStore(MemoryStore.of(kept))

    found = replayed_store(store, HOUR - 1, HOUR + 240)

    tier = [s.window for s in found.windows if s.replica is None]
    assert [w.gaps.get("*") for w in tier] == [None, Gap.SCRAPE_FAILED, None, None]
    assert (tier[1].start - HOUR, tier[1].end - HOUR) == pytest.approx((55, 130), abs=6)
    assert not [e for e in found.ended if isinstance(e, Finding) and e.rule in ("TargetDown", "TierDown")]


def test_gone_replica_is_not_missed_forever() -> None:
    first = [one for one in moved("steady", HOUR) if one[2] < HOUR + 60]
    both = [*moved("steady", HOUR), *((n, {**labels, "instance": "b"}, t, v) for n, labels, t, v in first)]
    again = [s for part in range(1, 5) for s in moved("steady", HOUR + part * 245)]
    store = PastStore(MemoryStore.of([*both, *again]))

    found = replayed_store(store, HOUR - 1, HOUR + 1200)

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
