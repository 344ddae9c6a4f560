"""`sizewatch plan calibration`: from a history, between two files, and with wrong input."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import recorded
from report_samples import TIER
from test_whatif_command import configured, recent

from agent.cli import main
from exporters.documents.calibration import calibration_schema


def ask(*words: object) -> int:
    return main.main(["plan", "calibration", *map(str, words)])


@pytest.fixture
def week(tmp_path: Path) -> str:
    return configured(tmp_path, recent(168))


def test_history_becomes_a_file(week: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "calibration.json"
    assert ask("-c", week, "--out", out) == 0
    written = json.loads(out.read_text())
    jsonschema.Draft202012Validator(calibration_schema()).validate(written)
    (entry,) = written["calibrations"]
    measured = next(load for load in entry["bins"] if load["measures"])
    ttft = next(measure for measure in measured["measures"] if measure["metric"] == "ttft_p99_seconds")
    assert ttft["low"] <= ttft["measured"] <= ttft["high"]
    assert ttft["factor"]["value"] == pytest.approx(ttft["measured"] / ttft["predicted"])
    assert "measured / predicted" in capsys.readouterr().out
    assert ask("-c", week, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["calibrations"] == written["calibrations"]
    assert ask(out, out) == 0
    assert "ttft_p99_seconds x 1 (" in capsys.readouterr().out
    assert ask(out, out, "--json") == 0
    assert "equal load" in json.loads(capsys.readouterr().out)["changes"][0]
    assert ask(out, out, out) == 2


def test_replay_writes_the_same_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plan = tmp_path / "calibration.json", recorded.PLANS / "cpu-small-open.yaml"
    main.main(["replay", str(recorded.folder("steady")), "--plan", str(plan), "--calibration", str(out)])
    written = json.loads(out.read_text())
    jsonschema.Draft202012Validator(calibration_schema()).validate(written)
    assert written["calibrations"][0]["engine_release"] == "0.32.0"
    # The noisy neighbour of the recording doubles the decode time.
    assert written["calibrations"][0]["factors"]["tpot_p50_seconds"]["value"] == pytest.approx(2.1, rel=0.1)
    assert ask(out, out) == 0
    assert "0.32.0 against 0.32.0: tpot_p50_seconds x 1 (" in capsys.readouterr().out
    assert main.main(["replay", str(recorded.folder("steady")), "--calibration", str(tmp_path / "no" / "file")]) == 2
    assert capsys.readouterr().err.endswith("; give another --calibration\n")


def test_tier_without_curve_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = {key: value for key, value in TIER.items() if key != "curve"}
    assert ask("-c", configured(tmp_path, recent(24), bare)) == 3
    assert "t: not calibrated: its plan has no curve" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no calibration file"),
        ('{"made_at": 1}', "is no calibration file: made_at"),
        ('{"schema": "urn:sizewatch:calibration:2"}', "is no calibration file: schema"),
        (None, "cannot be read"),
    ],
)
def test_wrong_file_is_named(text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.json"
    if text is not None:
        path.write_text(text)
    assert ask(path, path) == 2
    assert f"{path} {said}" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["-2.5", "NaN", "Infinity"])
def test_impossible_factor_is_named(number: str, week: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "edited.json"
    ask("-c", week, "--out", path)
    path.write_text(re.sub(r'"value": [0-9.]+', f'"value": {number}', path.read_text()))
    assert ask(path, path) == 2
    assert f"{path} is no calibration file: calibrations.0.bins.0" in capsys.readouterr().err


def test_unwritable_file_is_named(week: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("-c", week, "--out", tmp_path / "none" / "file.json") == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err
