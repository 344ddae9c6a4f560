"""`sizewatch whatif` and `plan calibration` on a history: answers, exit codes, JSON, and odd histories."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import recorded
import yaml
from golden_text import check_golden
from paths import ROOT
from report_samples import HOUR, POOLED, START, TIER, book, book_pools, day_and_night, finding, hours, plan

from agent.cli import main
from agent.history.reader import NOTE
from agent.history.store import HistoryStore
from exporters.documents.calibration import calibration_schema
from rules.telemetry.windows import Window

Captured = pytest.CaptureFixture[str]

DOCS = ROOT / "docs" / "what-if.md"


def recent(count: int, **more: object) -> list[Window]:
    """Hours of which the last has just ended."""
    shift = time.time() // HOUR * HOUR - START - count * HOUR
    return [replace(one, start=one.start + shift, end=one.end + shift) for one in hours(count, **more)]


def configured(
    folder: Path, several: list[Window], tier: Mapping[str, Any] = TIER, names: tuple[str, ...] = ("t",), **target: str
) -> str:
    """The configuration of a tier (or several alike) with these hours in its history."""
    (folder / "plan.yaml").write_text(yaml.safe_dump({"schema": 1, "tiers": dict.fromkeys(names, tier)}))
    config = {
        "plan": "plan.yaml",
        "data_dir": str(folder),
        "targets": [{"tier": names[0], "url": "http://127.0.0.1:9/metrics", **target}],
    }
    (folder / "sizewatch.yaml").write_text(yaml.safe_dump(config))
    with HistoryStore(folder / "history.db") as store:
        book(store, plan(names[0], **{key: tier.get(key) for key in TIER}), several, names[0])
    return str(folder / "sizewatch.yaml")


def ask(config: str, *words: str) -> int:
    return main.main(["whatif", "-c", config, *words])


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> str:
    return configured(tmp_path_factory.mktemp("whatif"), recent(168))


def asked(capsys: Captured, config: str, *words: str) -> tuple[int, dict[str, Any]]:
    code = ask(config, *words, "--format", "json")
    return code, json.loads(capsys.readouterr().out)


def test_simulated_history_is_said_in_json(tmp_path: Path, capsys: Captured) -> None:
    config = configured(tmp_path, recent(24))
    assert asked(capsys, config, "--instances", "6")[1]["simulated"] == ""
    with HistoryStore(tmp_path / "history.db") as store:
        store.keep("simulated", "true")
    assert asked(capsys, config, "--instances", "6")[1]["simulated"] == NOTE


def test_answer_leads_and_assumptions_follow(week: str, capsys: Captured) -> None:
    assert ask(week, "--instances", "6") == 0
    check_golden(__file__, "whatif.txt", re.sub(r" on \S+ \d+ \S+ \d\d:\d\d", " on DAY", capsys.readouterr().out))


def test_open_incident_leads_the_answer(tmp_path: Path, capsys: Captured) -> None:
    config = configured(tmp_path, recent(24))
    burn = replace(finding("TtftSloBurn", 0.0, None), started_at=time.time() - 2 * HOUR)
    with HistoryStore(tmp_path / "history.db") as store:
        store.book(spans=[burn])
    found = {n: asked(capsys, config, "--instances", n) for n in ("9", "10", "11")}
    states = [(code, answer["slo"]) for code, answer in found.values()]
    assert states == [(1, "broken"), (1, "broken"), (0, "likely_kept")]
    assert found["10"][1]["sentence"].startswith("TTFT SLO burn is open at this size since ")
    assert found["10"][1]["sentence"].endswith("the SLO would break.")
    assert found["10"][1]["open_findings"][0]["rule"] == "TtftSloBurn"
    assert found["11"][1]["sentence"].startswith("t with 11 replicas")
    ask(config, "--instances", "10")
    assert capsys.readouterr().out.startswith("TTFT SLO burn is open at this size since ")


@pytest.mark.parametrize(
    ("words", "code", "slo"),
    [
        (("--instances", "10"), 0, "likely_kept"),
        (("--instances", "6"), 0, "likely_kept"),
        (("--instances", "4"), 1, "likely_broken"),
        (("--instances", "10", "--rps", "75"), 1, "likely_broken"),
    ],
)
def test_exit_code_is_of_the_slo(week: str, capsys: Captured, words: tuple[str, ...], code: int, slo: str) -> None:
    found = asked(capsys, week, *words)
    assert (found[0], found[1]["slo"]) == (code, slo)


def test_json_is_described_and_equals_the_text(week: str, capsys: Captured) -> None:
    _, found = asked(capsys, week, "--instances", "6")
    assert (found["rps"], found["asked_rps"]) == (pytest.approx(30.0), None)
    assert (found["asked"]["replicas"], found["asked"]["rps"]) == (6, pytest.approx(5.0))
    assert found["now"]["replicas"] == pytest.approx(10.0)
    ttft = found["asked"]["benchmark"]["ttft_p99_seconds"]
    assert ttft["value"] == pytest.approx(0.31623, rel=1e-4)
    assert found["limits"][0]["fewest_replicas"] == 5
    assert found["one_lost_rps"] == pytest.approx(36.667, rel=1e-4)
    assert found["cost"]["per_million_tokens"] == pytest.approx(30 / 5.76)
    described = set(re.findall(r"`([a-z0-9_]+)`", DOCS.read_text(encoding="utf-8")))
    keys = set(re.findall(r'"([a-z0-9_]+)": ', json.dumps(found)))
    assert keys - described - set(found["asked"]["benchmark"]) == set()


def test_peak_is_of_the_asked_time(tmp_path: Path, capsys: Captured) -> None:
    config = configured(tmp_path, recent(240, rps=lambda n: 45.0 if n < 12 else day_and_night(n)))
    assert asked(capsys, config, "--instances", "10")[1]["rps"] == pytest.approx(30.0)
    assert asked(capsys, config, "--instances", "10", "--since", "10d")[1]["rps"] == pytest.approx(45.0)


APART = {**TIER, **POOLED}
WARM = {"instances": 10, "safety_factor": 1.2, "minimum_warm": 8}


def pooled(folder: Path, count: int) -> str:
    """A tier of 2 prefill and 4 decode replicas with as many hours of day and night in its history."""
    config = configured(folder, [], APART, pool="decode")
    with HistoryStore(folder / "history.db") as store:
        book_pools(store, plan(**POOLED), count)
    return config


def test_pools_are_answered_one_by_one(tmp_path: Path, capsys: Captured) -> None:
    config = pooled(tmp_path, 48)
    # 30 rps of 800 and 80 tokens: 24,000 of 16,000 a prefill replica, 2,400 of 1,000 a decode replica.
    code, found = asked(capsys, config, "--instances", "2+4")
    assert (code, found["first_pool"], found["rps"]) == (0, "prefill", pytest.approx(30.0))
    assert [one["utilization"] for one in found["pools"]] == pytest.approx([0.75, 0.6])
    needs = [(pool["pool"], pool["needed"]["replicas"], pool["now"]) for pool in found["pools"]]
    assert needs == [("prefill", 2, 2.0), ("decode", 3, 4.0)]
    assert found["wanted_ratio"] == pytest.approx(1.5 / 2.4)
    assert found["most_rps"] == pytest.approx(40.0)
    assert ask(config, "--instances", "1+4") == 1
    told = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "t: 1+4 replicas at 30 rps: the prefill pool is full, 150% used" in told
    assert "16,000 prompt tokens a second of one prefill replica, 800 a request" in told


def without(part: str) -> dict[str, Any]:
    return {key: value for key, value in TIER.items() if key != part}


@pytest.mark.parametrize(
    ("tier", "words", "code", "said"),
    [
        (TIER, "8 --rps 30", 0, "Use 51% at that load: 3.75 rps a replica, of the 7.33 rps that one takes"),
        ({"fleet": {"instances": 10}}, "6", 0, "Step 11 6 replicas: 1 x this load for safety, at least 1 warm"),
        ({"fleet": WARM}, "6", 0, "Step 11 8 replicas: 1.2 x this load for safety, at least 8 warm"),
        (without("cost"), "10", 0, "20 GPU-hours an hour; the plan has no price"),
        # Far below what production carries at any hour of the day: the estimate rises by midnights.
        (without("curve"), "24", 0, "Use not known: the plan has no benchmark"),
        (without("curve"), "5", 3, "at which load something breaks is not known"),
        (without("workload"), "10", 0, "30 rps; the peak was 30 rps on"),
    ],
)
def test_text_names_its_facts_or_gaps(
    tmp_path: Path, capsys: Captured, tier: dict[str, Any], words: str, code: int, said: str
) -> None:
    config = configured(tmp_path, recent(168), tier if "slo" in tier else {**TIER, **tier})
    assert ask(config, "--instances", *words.split()) == code
    assert said in " ".join(capsys.readouterr().out.split())


def test_unseen_pool_has_no_average(tmp_path: Path, capsys: Captured) -> None:
    assert ask(configured(tmp_path, recent(24), APART, pool="decode"), "--instances", "2+4") == 0
    told = capsys.readouterr().out
    assert ("none was seen" in told, "0 on average" in told) == (True, False)


def calibrate(*words: object) -> int:
    return main.main(["plan", "calibration", *map(str, words)])


def test_history_becomes_a_file(week: str, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "calibration.json"
    assert calibrate("-c", week, "--out", out) == 0
    written = json.loads(out.read_text())
    jsonschema.Draft202012Validator(calibration_schema()).validate(written)
    (entry,) = written["calibrations"]
    measured = next(load for load in entry["bins"] if load["measures"])
    ttft = next(measure for measure in measured["measures"] if measure["metric"] == "ttft_p99_seconds")
    assert ttft["low"] <= ttft["measured"] <= ttft["high"]
    assert ttft["factor"]["value"] == pytest.approx(ttft["measured"] / ttft["predicted"])
    assert "measured / predicted" in capsys.readouterr().out
    assert calibrate("-c", week, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["calibrations"] == written["calibrations"]
    assert calibrate(out, out) == 0
    assert "ttft_p99_seconds x 1 (" in capsys.readouterr().out
    assert calibrate(out, out, "--json") == 0
    assert "equal load" in json.loads(capsys.readouterr().out)["changes"][0]
    assert calibrate(out, out, out) == 2


def test_replay_writes_the_same_file(tmp_path: Path, capsys: Captured) -> None:
    out, plan = tmp_path / "calibration.json", recorded.PLANS / "cpu-small-open.yaml"
    main.main(["replay", str(recorded.folder("steady")), "--plan", str(plan), "--calibration", str(out)])
    written = json.loads(out.read_text())
    jsonschema.Draft202012Validator(calibration_schema()).validate(written)
    assert written["calibrations"][0]["engine_release"] == "0.32.0"
    # The noisy neighbour of the recording doubles the decode time.
    assert written["calibrations"][0]["factors"]["tpot_p50_seconds"]["value"] == pytest.approx(2.1, rel=0.1)
    assert calibrate(out, out) == 0
    assert "0.32.0 against 0.32.0: tpot_p50_seconds x 1 (" in capsys.readouterr().out
    assert main.main(["replay", str(recorded.folder("steady")), "--calibration", str(tmp_path / "no" / "file")]) == 2
    assert capsys.readouterr().err.endswith("; give another --calibration\n")


@pytest.mark.parametrize(
    ("key", "number", "text"),
    [
        *(("value", number, "factor.value: Input") for number in ("-2.5", "NaN", "Infinity")),
        ("low", "9e9", "must not be below low"),
    ],
)
def test_impossible_factor_is_named(
    key: str, number: str, text: str, week: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "edited.json"
    calibrate("-c", week, "--out", path)
    path.write_text(re.sub(rf'"{key}": [0-9.]+', f'"{key}": {number}', path.read_text()))
    assert calibrate(path, path) == 2
    error = capsys.readouterr().err
    assert f"{path} is no calibration file: calibrations.0.bins.0" in error
    assert text in error
