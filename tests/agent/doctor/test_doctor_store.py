"""What the doctor says of a store: one line, with what to do where it does not answer."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_store import Handler, give, serving, vector
from prometheus_server import victoria_metrics

from agent.config.load import LoadedConfig, parse_config
from agent.doctor.check_result import CheckLevel, CheckResult
from agent.doctor.endpoints import check_store


def said(url: str, tiers: dict[str, Any] | None = None) -> list[CheckResult]:
    config = parse_config({"role": "fleet", "store": {"url": url, "timeout": "60s"}, "tiers": tiers or {}})
    loaded = LoadedConfig(path=Path("sizewatch.yaml"), config=config, plan=None, warnings=())
    return list(check_store(loaded, time.time()))


@pytest.mark.server
def test_store_that_answers_is_one_line(tmp_path: Path) -> None:
    with victoria_metrics(tmp_path) as there:
        (found,) = said(there.url)
    assert found.level is CheckLevel.OK
    assert found.text.startswith(f"{there.url}: answered in ")
    loaded = LoadedConfig(path=Path("sizewatch.yaml"), config=parse_config({}), plan=None, warnings=())
    assert list(check_store(loaded, time.time())) == []


@pytest.mark.server
def test_every_tier_is_counted_in_the_store(tmp_path: Path) -> None:
    tiers = {
        "mine": {"from": "engines", "selector": 'job="mine"'},
        "lost": {"from": "engines", "selector": 'job="lost"'},
        "large": {"from": "engines", "selector": 'job="large"'},
        "told": {},
        "untold": {},
    }
    now = time.time()
    with victoria_metrics(tmp_path) as there:
        there.write(
            [
                *(("up", {"job": "mine", "instance": f"i{n}"}, now - 31, 1.0) for n in range(3)),
                *(("up", {"job": "large", "instance": f"i{n}"}, now - 31, 1.0) for n in range(101)),
                ("sizewatch_target_up", {"tier": "told", "replica": "r"}, now - 31, 1.0),
            ]
        )
        answered, *found = said(there.url, tiers=tiers)
    assert answered.level is CheckLevel.OK
    texts = {one.text: one for one in found}
    assert texts["mine: 3 replicas in it"].level is CheckLevel.OK
    assert texts["told: 1 replica in it"].level is CheckLevel.OK
    large = texts["large: 101 replicas from engines, more than the measured 100"]
    assert (large.level, "node agents" in large.advice) == (CheckLevel.WARN, True)
    for tier in ("lost", "untold"):
        line = texts[f"{tier}: nothing is told of it"]
        assert (line.level, "docs/fleet.md" in line.advice) == (CheckLevel.FAIL, True)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda handler: give(handler, b"", 401), "wants credentials"),
        (lambda handler: give(handler, b"", 404), "answered 404"),
        (lambda handler: give(handler, b"", 502, "text/html"), "answered 502"),
        (lambda handler: give(handler, vector(warnings=["no store"])), "with a warning"),
    ],
)
def test_failing_store_has_advice(act: Callable[[Handler], None], words: str) -> None:
    with serving() as server:
        server.act = act
        (found,) = said(server.url)
    assert found.level is CheckLevel.FAIL
    assert found.text.startswith(f"{server.url}: ")
    assert words in found.text
    assert found.advice
