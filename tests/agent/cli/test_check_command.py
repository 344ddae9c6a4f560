"""`sizewatch check`: what was seen under another plan is no failed scrape, and `--since` is what is looked at, or that is said."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden_text import check_golden
from report_samples import TIER, hour
from test_history_commands import configured, recent

from agent.cli import main
from rules.telemetry.windows import MINUTE_SECONDS


def check(capsys: pytest.CaptureFixture[str], config: str, *words: str) -> tuple[int, str]:
    code = main.main(["check", "-c", config, *words])
    return code, capsys.readouterr().out


def test_new_plan_waits_for_its_first_minute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configured(tmp_path, recent(24))
    assert check(capsys, config)[0] == 0
    changed: dict[str, Any] = {**TIER, "slo": {**TIER["slo"], "ttft_p99_seconds": 3.0}}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump({"schema": 1, "tiers": {"t": changed}}))
    code, text = check(capsys, config)
    assert code == 3
    assert text.startswith("t: new plan since ")
    assert "no minute under it is over" in text
    assert "scrape" not in text
    told = json.loads(check(capsys, config, "--format", "json")[1])
    assert [tier["answers"] for tier in told["tiers"]] == [[]]


def test_empty_history_is_no_failed_scrape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = check(capsys, configured(tmp_path, []))
    assert code == 3
    assert "its history has no minute of this time" in text
    assert "scrape" not in text


NOW = 1_790_000_010.0
"""Half a minute into a minute: the last ten minutes cut that much off the first of them."""


@pytest.fixture(autouse=True)
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that ran across the end of a minute would see a minute less."""
    monkeypatch.setattr(time, "time", lambda: NOW)


def minutes_kept(folder: Path, minutes: int = 120, rps: float = 6.0, **parts: object) -> list[str]:
    """A history of the last minutes (two hours): 3 rps, and 6 in the last ten. The words of a check of it."""
    end = NOW // MINUTE_SECONDS * MINUTE_SECONDS
    several = []
    for back in range(minutes, 0, -1):
        found = hour(0, (rps if back <= 10 else 3) / 60, replicas=1 / 60)
        start = end - back * MINUTE_SECONDS
        several.append(replace(found, start=start, end=start + MINUTE_SECONDS))
    return ["check", "-c", configured(folder, several, {**TIER, **parts})]


def as_json(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    main.main([*words, "--format", "json"])
    (tier,) = json.loads(capsys.readouterr().out)["tiers"]
    return dict(tier)


def test_guardrails_do_not_change_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guardrails = {"max_prompt_tokens": 500, "max_generation_tokens": 150, "queue_breaker": 50}
    words = minutes_kept(tmp_path, minutes=190, guardrails=guardrails)
    assert main.main(words) == 0
    # All prompts have 800 tokens, in a bucket of 500 to 1,000, and all outputs 80, in one of 50 to 100.
    check_golden(__file__, "guardrails.txt", capsys.readouterr().out.replace(str(tmp_path), "HERE"))
    states = {line["key"]: line["state"] for line in as_json(words, capsys)["guardrails"]}
    assert states == {"max_prompt_tokens": "ineffective", "max_generation_tokens": "fits", "queue_breaker": "too_low"}


def test_since_selects_its_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = minutes_kept(tmp_path)
    assert as_json([*words, "--since", "10m"], capsys)["requests"] == 9 * 60 * 6
    assert as_json([*words, "--since", "1h"], capsys)["requests"] == 10 * 60 * 6 + 49 * 60 * 3
    main.main([*words, "--since", "10m"])
    assert "(the last 10m, 3," in capsys.readouterr().out
    assert main.main([*words, "--since", "10s"]) == 2
    assert "must be from 1m to" in capsys.readouterr().err
    main.main([*words, "--since", "200d"])
    assert " seen of the last 91d, not 200d: no more is kept, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("minutes", "code", "words"),
    [
        (4, 3, "t: learning, 4 of 180 min (4 min seen of the last 7d, "),
        (150, 3, "t: learning, 150 of 180 min ("),
        (190, 0, "t: production confirms the benchmark ("),
    ],
)
def test_three_hours_are_needed_to_confirm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], minutes: int, code: int, words: str
) -> None:
    command = minutes_kept(tmp_path, minutes)
    assert main.main(command) == code
    assert capsys.readouterr().out.startswith(words)
    tier = as_json(command, capsys)
    assert (tier["learning"], tier["needed_seconds"]) == (code == 3, 10_800.0)
    assert tier["status"] == ("unknown" if code == 3 else "ok")


def test_finding_does_not_wait_three_hours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(minutes_kept(tmp_path, minutes=20, rps=24 * 7.3)) == 1
    assert "learning" not in capsys.readouterr().out
