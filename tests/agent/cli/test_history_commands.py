"""`sizewatch whatif`, `plan calibration` and `report` on a history: answers, exit codes, JSON, files, odd histories and weeks."""

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
from report_runs import webhook
from report_samples import HOUR, POOLED, START, TIER, WEEK, book, book_pools, day_and_night, finding, hours, plan, tier

from agent.cli import main
from agent.cli.report import describe_span
from agent.config.load import LoadedConfig, load, parse_config
from agent.files import EVERYBODY_READS, write_files
from agent.history.store import NOTE, HistoryStore
from agent.reporting.generate import make_files, query_report_inputs
from exporters.documents.calibration import calibration_schema
from exporters.report.build import report
from exporters.report.findings import ReportInputs
from exporters.report.records import TierReport, report_schema
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.plan.schema import Plan
from rules.resize.production_summary import FINE
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
        book(store, plan(names[0], **{**dict.fromkeys(TIER), **tier}), several, names[0])
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


FILES = ["calibration.json", "plan.next.yaml", "report.html", "report.json", "report.md"]


def history(folder: Path, several: list[Window], one: Plan | None = None) -> Path:
    path = folder / "history.db"
    with HistoryStore(path) as store:
        book(store, one or plan(), several)
    return path


Question = tuple[LoadedConfig, float, float]


def question_of(one: Plan, since: float = START + WEEK, until: float = START + 2 * WEEK) -> Question:
    config = parse_config({"forecast": {"enabled": False, "zone": "UTC"}})
    return LoadedConfig(path=Path("sizewatch.yaml"), config=config, plan=one, warnings=()), since, until


def told(path: Path, question: Question) -> ReportInputs:
    with HistoryStore.open_reader(path) as store:
        return query_report_inputs(store, *question)


def tier_of(path: Path, question: Question) -> TierReport:
    return report(told(path, question))[0].tiers[0]


def test_second_week_is_compared_with_the_first(tmp_path: Path) -> None:
    path = history(tmp_path, [*hours(168, rps=lambda n: 10.0), *hours(168, first=168)])
    found = tier_of(path, question_of(plan()))
    assert found.workload.average_rps == pytest.approx(20.0)
    assert found.workload.peak_rps == pytest.approx(30.0)
    assert (found.proposal.kind, found.proposal.replicas) == ("shrink", 6)
    assert next(row for row in found.monitoring if row.key == "completed_rps").change == pytest.approx(1.0)
    assert found.quality.hours_seen == pytest.approx(168.0)
    assert found.quality.remarks == ()


def test_curve_is_of_the_days_of_capacity(tmp_path: Path) -> None:
    # After the last midnight there is more load than in the week before.
    path = history(tmp_path, hours(175, rps=lambda n: 45.0 if n >= 168 else day_and_night(n)))
    (past,) = told(path, question_of(plan(), since=START + 7 * HOUR, until=START + WEEK + 7 * HOUR)).tiers
    usable, points = past.resize.usable, past.resize.points
    assert max(one.rps for one in points if one.kept in FINE) == usable.kept_rps == pytest.approx(3.0)
    curve = report(told(path, question_of(plan(), since=START, until=START + WEEK + 7 * HOUR)))[0].tiers[0].curve
    assert (curve.days, curve.until) == (7.0, START + WEEK)


def test_first_day_has_a_curve(tmp_path: Path) -> None:
    (past,) = told(history(tmp_path, hours(7)), question_of(plan(), since=START, until=START + 7 * HOUR)).tiers
    assert [one.rps for one in past.resize.points] == [pytest.approx(1.0)]


def test_daily_rules_rest_on_the_week(tmp_path: Path) -> None:
    path = history(tmp_path, hours(336))
    found = tier_of(path, question_of(plan()))
    # 10 replicas at 27.3 % of 60 %, less the 2 that are kept warm: 3.45, and 3.45 x 120 = 414 USD a day.
    assert found.trap.status == "warning"
    assert "4.0 of 10.0 replicas are surplus, 480 USD a day" in found.trap.sentence
    assert "Prompts are at most 0.5x as long as planned" in found.drift[0].sentence


def test_changed_plan_keeps_versions_apart(tmp_path: Path) -> None:
    path, changed = tmp_path / "history.db", plan(slo={"ttft_p99_seconds": 1.0})
    with HistoryStore(path) as store:
        book(store, plan(), hours(68))
        book(store, changed, hours(100, first=68))
        change = TimelineEvent(t=START + 68 * HOUR, kind=TimelineKind.PLAN, tier="t", replica=None, text="another plan")
        store.book(events=[change])
    found = tier_of(path, question_of(changed, since=START, until=START + WEEK))
    (remark,) = found.quality.remarks
    assert remark.startswith("The plan changed on Wed 04 Nov 20:00 UTC: ")
    assert len(found.quality.plan_versions) == 2
    since = sum(day_and_night(n) * HOUR for n in range(68, 168))
    assert sum(point.requests or 0 for point in found.curve.production) == since
    assert found.workload.requests == sum(day_and_night(n) * HOUR for n in range(168))


def test_forgotten_tier_is_named(tmp_path: Path) -> None:
    path = history(tmp_path, hours(24))
    with HistoryStore(path) as store:
        gone = finding("KvCacheCascade", 2, 3)
        store.book(spans=[replace(gone, subject=replace(gone.subject, tier="old"))])
    found, _ = report(told(path, question_of(plan(), since=START, until=START + WEEK)))
    assert found.remarks == ("old was watched in this time and is in neither plan nor targets now.",)


def test_tier_without_data_is_reported(tmp_path: Path) -> None:
    both = plan().model_copy(update={"tiers": {"t": tier(), "u": tier()}})
    path = history(tmp_path, hours(168))
    found, proposed = report(told(path, question_of(both, since=START, until=START + WEEK)))
    assert [(one.tier, one.proposal.kind) for one in found.tiers] == [("t", "shrink"), ("u", "no_recommendation")]
    assert found.headline == "Shrink t; no recommendation for u: 480 USD a day less."
    assert proposed.tiers["u"] == both.tiers["u"]


def test_the_command_writes_four_files_that_hold(tmp_path: Path, capsys: Captured) -> None:
    config, out = configured(tmp_path, recent(168)), tmp_path / "out"
    assert main.main(["report", "-c", config, "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert "shrink from 10 to 6 replicas" in capsys.readouterr().out
    whole = json.loads((out / "report.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(report_schema()).validate(whole)
    assert whole["until"] - whole["since"] == WEEK
    assert main.main(["plan", "check", str(out / "plan.next.yaml")]) == 0
    assert main.main(["plan", "diff", str(tmp_path / "plan.yaml"), str(out / "plan.next.yaml")]) == 1
    assert capsys.readouterr().out.count("t: fleet instances: 10 -> 6 (-40%)") == 1


def test_report_is_sent_when_asked(tmp_path: Path, capsys: Captured) -> None:
    config, out = configured(tmp_path, recent(24)), tmp_path / "out"
    words = ["report", "-c", config, "--since", "1d", "--out", str(out), "--deliver"]
    assert main.main(words) == 2
    assert "report.deliver: names no destination" in capsys.readouterr().err
    with webhook() as hook:
        (tmp_path / "url").write_text(f"json://u:CANARY@{hook.place}/x")
        (tmp_path / "bad").write_text("json://u:CANARY@127.0.0.1:1/x")
        several = [{"name": "chat", "url_file": "url"}, {"name": "bad", "url_file": "bad"}]
        with Path(config).open("a", encoding="utf-8") as more:
            more.write(yaml.safe_dump({"report": {"deliver": several}}))
        assert main.main(words) == 1
        said = capsys.readouterr()
        assert "chat: sent\nbad: not sent: the connection was refused\n" in said.out
        (tmp_path / "bad").write_text(f"json://{hook.place}/y")
        assert main.main(words) == 0
        assert [one["path"] for one in hook.taken] == ["/x", "/x", "/y"]
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    assert "CANARY" not in said.out + said.err


def test_simulated_history_is_said_once(tmp_path: Path, capsys: Captured) -> None:
    config, out = configured(tmp_path, recent(24)), tmp_path / "out"
    both = {"schema": 1, "tiers": {"t": TIER, "u": TIER}}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(both), encoding="utf-8")
    with HistoryStore(tmp_path / "history.db") as store:
        store.keep("simulated", "true")
    assert main.main(["report", "-c", config, "--since", "1w", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert said.err.count("SIMULATED") == 1
    assert f"of the last 7d in {out}" in said.out


@pytest.mark.parametrize(("since", "why"), [("90m", describe_span(HOUR, 5400.0)), ("1h", "1h")])
def test_uneven_time_is_told_with_its_hours(since: str, why: str, tmp_path: Path, capsys: Captured) -> None:
    config = configured(tmp_path, recent(2))
    assert main.main(["report", "-c", config, "--since", since, "--out", str(tmp_path / "out")]) == 0
    assert f"of the last {why} in " in capsys.readouterr().out


def test_first_hour_is_reported_as_seen(tmp_path: Path) -> None:
    (whole,) = hours(1)
    config = configured(tmp_path, [replace(whole, end=whole.start + 20 * 60)])
    _, made = make_files(load(Path(config)), WEEK, START + 20 * 60 + 7, START + 21 * 60)
    assert (made.since, made.until, made.made_at) == (START, START + 20 * 60, START + 21 * 60)
    found = made.tiers[0]
    assert found.quality.hours_seen == pytest.approx(1 / 3)
    assert found.workload.requests == day_and_night(0) * HOUR
    assert describe_span(1200.0, HOUR) == ("20m (not 1h: a report is of full hours of the history, at most 13 weeks)")


@pytest.mark.parametrize(
    ("since", "until", "reported"),
    [(HOUR, START + HOUR + 20 * 60, HOUR), (1e13, START + HOUR, 13 * WEEK)],
    ids=["a full hour ends it", "at most 13 weeks"],
)
def test_time_of_a_report_is_bounded(since: float, until: float, reported: float, tmp_path: Path) -> None:
    _, made = make_files(load(Path(configured(tmp_path, hours(2)))), since, until, until)
    assert (made.since, made.until) == (START + HOUR - reported, START + HOUR)


@pytest.mark.parametrize(("below", "error"), [("", "File exists"), ("/out", "Not a directory")])
def test_unwritable_directory_is_told_first(below: str, error: str, tmp_path: Path, capsys: Captured) -> None:
    config = configured(tmp_path, [])
    (tmp_path / "history.db").unlink()
    assert main.main(["report", "-c", config, "--out", f"{config}{below}"]) == 2
    assert f"{config}{below} cannot be written: {error}; give another --out" in capsys.readouterr().err
    assert main.main(["report", "-c", config, "--out", str(tmp_path / "out")]) == 2
    assert "`sizewatch run` makes it" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_empty_time_is_still_reported(tmp_path: Path) -> None:
    config, out = configured(tmp_path, hours(2)), tmp_path / "out"
    assert main.main(["report", "-c", config, "--out", str(out)]) == 3
    assert "nothing was seen in this time" in (out / "report.md").read_text(encoding="utf-8")


def test_failed_report_leaves_no_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "report.html").mkdir(parents=True)
    (out / ".report.json.new").write_text("of a writer that was killed")
    with pytest.raises(IsADirectoryError):
        write_files({out / "report.json": "{}", out / "report.html": "<html>"}, EVERYBODY_READS)
    assert [path.name for path in out.iterdir()] == ["report.html"]
