"""`sizewatch report` on histories: what it writes, its exit codes, and what it says of odd weeks."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml
from report_runs import webhook
from report_samples import HOUR, START, TIER, WEEK, book, day_and_night, finding, hours, plan, tier
from test_history_commands import configured as write_config
from test_history_commands import recent

from agent.cli import main
from agent.cli.report import describe_span
from agent.config.load import LoadedConfig, load, parse_config
from agent.files import EVERYBODY_READS, write_files
from agent.history.store import HistoryStore
from agent.reporting.generate import make_files, query_report_inputs
from exporters.report.build import report
from exporters.report.findings import ReportInputs
from exporters.report.records import TierReport, report_schema
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.plan.schema import Plan
from rules.resize.production_summary import FINE
from rules.telemetry.windows import Window

Captured = pytest.CaptureFixture[str]

FILES = ["calibration.json", "plan.next.yaml", "report.html", "report.json", "report.md"]


def history(folder: Path, several: list[Window], one: Plan | None = None) -> Path:
    path = folder / "history.db"
    with HistoryStore(path) as store:
        book(store, one or plan(), several)
    return path


Question = tuple[LoadedConfig, float, float]


def asked(one: Plan, since: float = START + WEEK, until: float = START + 2 * WEEK) -> Question:
    config = parse_config({"forecast": {"enabled": False, "zone": "UTC"}})
    return LoadedConfig(path=Path("sizewatch.yaml"), config=config, plan=one, warnings=()), since, until


def told(path: Path, question: Question) -> ReportInputs:
    with HistoryStore.open_reader(path) as store:
        return query_report_inputs(store, *question)


def tier_of(path: Path, question: Question) -> TierReport:
    return report(told(path, question))[0].tiers[0]


def test_second_week_is_compared_with_the_first(tmp_path: Path) -> None:
    path = history(tmp_path, [*hours(168, rps=lambda n: 10.0), *hours(168, first=168)])
    found = tier_of(path, asked(plan()))
    assert found.workload.average_rps == pytest.approx(20.0)
    assert found.workload.peak_rps == pytest.approx(30.0)
    assert (found.proposal.kind, found.proposal.replicas) == ("shrink", 6)
    assert next(row for row in found.monitoring if row.key == "completed_rps").change == pytest.approx(1.0)
    assert found.quality.hours_seen == pytest.approx(168.0)
    assert found.quality.remarks == ()


def test_curve_is_of_the_days_of_capacity(tmp_path: Path) -> None:
    # After the last midnight there is more load than in the week before.
    path = history(tmp_path, hours(175, rps=lambda n: 45.0 if n >= 168 else day_and_night(n)))
    (past,) = told(path, asked(plan(), since=START + 7 * HOUR, until=START + WEEK + 7 * HOUR)).tiers
    usable, points = past.resize.usable, past.resize.points
    assert max(one.rps for one in points if one.kept in FINE) == usable.kept_rps == pytest.approx(3.0)
    curve = report(told(path, asked(plan(), since=START, until=START + WEEK + 7 * HOUR)))[0].tiers[0].curve
    assert (curve.days, curve.until) == (7.0, START + WEEK)


def test_first_day_has_a_curve(tmp_path: Path) -> None:
    (past,) = told(history(tmp_path, hours(7)), asked(plan(), since=START, until=START + 7 * HOUR)).tiers
    assert [one.rps for one in past.resize.points] == [pytest.approx(1.0)]


def test_daily_rules_rest_on_the_week(tmp_path: Path) -> None:
    path = history(tmp_path, hours(336))
    found = tier_of(path, asked(plan()))
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
    found = tier_of(path, asked(changed, since=START, until=START + WEEK))
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
    found, _ = report(told(path, asked(plan(), since=START, until=START + WEEK)))
    assert found.remarks == ("old was watched in this time and is in neither plan nor targets now.",)


def test_tier_without_data_is_reported(tmp_path: Path) -> None:
    both = plan().model_copy(update={"tiers": {"t": tier(), "u": tier()}})
    path = history(tmp_path, hours(168))
    found, proposed = report(told(path, asked(both, since=START, until=START + WEEK)))
    assert [(one.tier, one.proposal.kind) for one in found.tiers] == [("t", "shrink"), ("u", "no_recommendation")]
    assert found.headline == "Shrink t; no recommendation for u: 480 USD a day less."
    assert proposed.tiers["u"] == both.tiers["u"]


def configured(folder: Path, several: list[Window]) -> Path:
    return Path(write_config(folder, several))


def test_the_command_writes_four_files_that_hold(tmp_path: Path, capsys: Captured) -> None:
    config, out = configured(tmp_path, recent(168)), tmp_path / "out"
    assert main.main(["report", "-c", str(config), "--out", str(out)]) == 0
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
    words = ["report", "-c", str(config), "--since", "1d", "--out", str(out), "--deliver"]
    assert main.main(words) == 2
    assert "report.deliver: names no destination" in capsys.readouterr().err
    with webhook() as hook:
        (tmp_path / "url").write_text(f"json://u:CANARY@{hook.place}/x")
        (tmp_path / "bad").write_text("json://u:CANARY@127.0.0.1:1/x")
        several = [{"name": "chat", "url_file": "url"}, {"name": "bad", "url_file": "bad"}]
        with config.open("a", encoding="utf-8") as more:
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
    assert main.main(["report", "-c", str(config), "--since", "1w", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert said.err.count("SIMULATED") == 1
    assert f"of the last 7d in {out}" in said.out


@pytest.mark.parametrize(("since", "why"), [("90m", describe_span(HOUR, 5400.0)), ("1h", "1h")])
def test_uneven_time_is_told_with_its_hours(since: str, why: str, tmp_path: Path, capsys: Captured) -> None:
    config = configured(tmp_path, recent(2))
    assert main.main(["report", "-c", str(config), "--since", since, "--out", str(tmp_path / "out")]) == 0
    assert f"of the last {why} in " in capsys.readouterr().out


def test_first_hour_is_reported_as_seen(tmp_path: Path) -> None:
    (whole,) = hours(1)
    config = configured(tmp_path, [replace(whole, end=whole.start + 20 * 60)])
    _, made = make_files(load(config), WEEK, START + 20 * 60 + 7, START + 21 * 60)
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
    _, made = make_files(load(configured(tmp_path, hours(2))), since, until, until)
    assert (made.since, made.until) == (START + HOUR - reported, START + HOUR)


@pytest.mark.parametrize(("below", "error"), [("", "File exists"), ("/out", "Not a directory")])
def test_unwritable_directory_is_told_first(below: str, error: str, tmp_path: Path, capsys: Captured) -> None:
    config = configured(tmp_path, [])
    (tmp_path / "history.db").unlink()
    assert main.main(["report", "-c", str(config), "--out", f"{config}{below}"]) == 2
    assert f"{config}{below} cannot be written: {error}; give another --out" in capsys.readouterr().err
    assert main.main(["report", "-c", str(config), "--out", str(tmp_path / "out")]) == 2
    assert "`sizewatch run` makes it" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_empty_time_is_still_reported(tmp_path: Path) -> None:
    config, out = configured(tmp_path, hours(2)), tmp_path / "out"
    assert main.main(["report", "-c", str(config), "--out", str(out)]) == 3
    assert "nothing was seen in this time" in (out / "report.md").read_text(encoding="utf-8")


def test_failed_report_leaves_no_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "report.html").mkdir(parents=True)
    (out / ".report.json.new").write_text("of a writer that was killed")
    with pytest.raises(IsADirectoryError):
        write_files({out / "report.json": "{}", out / "report.html": "<html>"}, EVERYBODY_READS)
    assert [path.name for path in out.iterdir()] == ["report.html"]
