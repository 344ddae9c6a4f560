"""What the doctor says of forecasts and of the weekly report."""

from pathlib import Path

from report_runs import CANARY, configured

from agent.config.load import LoadedConfig, parse_config
from agent.doctor.check_result import CheckLevel, format_text
from agent.doctor.configuration import check_forecast, check_report


def loaded(**keys: object) -> LoadedConfig:
    config = parse_config(keys, environment={})
    return LoadedConfig(path=Path("sizewatch.yaml"), config=config, plan=None, warnings=())


def test_forecasts_are_on_off_or_none() -> None:
    texts = [
        (line.level, line.text)
        for keys in ({}, {"forecast": {"enabled": False}}, {"role": "node"})
        for line in check_forecast(loaded(**keys))
    ]
    assert texts == [
        (CheckLevel.OK, "on, its libraries are installed"),
        (CheckLevel.OK, "off (forecast.enabled: false)"),
        (CheckLevel.OK, "none: this agent keeps no history"),
    ]


def test_report_line_has_no_address(tmp_path: Path) -> None:
    addresses = {"chat": f"json://u:{CANARY}@127.0.0.1:1/{CANARY}"}
    (line,) = check_report(configured(tmp_path, addresses))
    assert line.level is CheckLevel.OK
    assert line.text.startswith("every Monday 07:00 UTC, of the last 7d, into ")
    assert line.text.endswith("; delivered to chat")
    assert CANARY not in format_text([line])


def test_report_switched_off_has_a_line(tmp_path: Path) -> None:
    (line,) = check_report(configured(tmp_path, report={"enabled": False}))
    assert (line.level, line.text) == (CheckLevel.OK, "off (report.enabled: false)")
