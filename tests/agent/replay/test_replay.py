"""The replay end to end: its JSON (the contract of the design), its exit codes, and recordings that are broken."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from paths import TESTS

from agent.cli.main import main
from agent.config.files import load_plan
from agent.replay.replay import Replay, replay
from agent.sources.recording import load
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


def test_missing_tier_of_plan_is_named(capsys: Captured) -> None:
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
