"""The keys of `report`: what they mean, and what is refused without repeating an address."""

from pathlib import Path
from typing import Any

import pytest

from agent.config.load import parse_config
from agent.errors import ConfigError

SECRET = "json://user:CANARY@example.com"


def problems(report: Any, **keys: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as bad:
        parse_config({"report": report, **keys})
    assert "CANARY" not in str(bad.value)
    return bad.value.problems


def test_report_is_written_monday_by_default() -> None:
    config = parse_config({"data_dir": "/var/lib/x"})
    keys = config.report
    assert (keys.weekday, keys.at, keys.zone, keys.since_seconds) == ("monday", "07:00", None, 604_800.0)
    assert (config.report_folder, keys.keep, keys.deliver) == (Path("/var/lib/x/reports"), 26, ())


def test_report_can_be_off_or_elsewhere() -> None:
    assert parse_config({"report": {"enabled": False}}).report_folder is None
    config = parse_config({"report": {"directory": "there"}}, folder=Path("/etc/sizewatch"))
    assert config.report_folder == Path("/etc/sizewatch/there")


def test_node_writes_no_report() -> None:
    assert parse_config({"role": "node", "data_dir": "/d"}).report_folder is None
    (problem,) = problems({"keep": 3}, role="node")
    assert problem.startswith("report: is given, but role node writes none")
    assert parse_config({"role": "node", "report": {"enabled": False}}).report_folder is None


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"at": 420}, 'report.at: must be a time of the day such as "07:00", in quotes'),
        ({"at": "7:00"}, 'report.at: must be a time of the day such as "07:00", in quotes'),
        ({"weekday": "Monday"}, "report.weekday: must be 'monday'"),
        ({"since": "30m"}, "report.since: must be from 1h to 91d"),
        ({"keep": 0}, "report.keep"),
        ({"zone": "Mars"}, "report.zone: is no time zone"),
        ({"deliver": SECRET}, "report.deliver: must be a list"),
        ({"deliver": [SECRET]}, "report.deliver[0]: must be a mapping"),
        ({"deliver": [{"name": "a", "url": SECRET}]}, "report.deliver[0].url: is not a key"),
        ({"deliver": [{"name": "a", "url_env": SECRET}]}, "report.deliver[0].url_env: String should match"),
        ({"deliver": [{"name": SECRET, "url_env": "A"}]}, "report.deliver[0].name: String should match"),
        ({"deliver": [{"name": "a"}]}, "report.deliver[0]: needs url_file or url_env"),
        ({"deliver": [{"name": "a", "url_env": "A", "url_file": "f"}]}, "report.deliver[0]: needs url_file or url_env"),
        ({"deliver": [{"name": "a", "url_env": "A", "with": ["pdf"]}]}, "report.deliver[0].with[0]: must be 'report'"),
        (
            {"deliver": [{"name": "a", "url_env": "A", "with": ["plan", "picture"]}]},
            "report.deliver[0].with[1]: must be 'report', 'markdown', 'json' or 'plan'",
        ),
        (
            {"deliver": [{"name": "a", "url_env": "A"}, {"name": "a", "url_env": "B"}]},
            "report.deliver[1].name: is that of deliver[0]",
        ),
    ],
)
def test_wrong_report_key_repeats_no_address(report: Any, said: str) -> None:
    assert any(problem.startswith(said) for problem in problems(report))
