"""What the doctor says of a store: one line, with what to do where it does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_store import Handler, give, serving, vector
from store_servers import victoria_metrics

from agent.config.load import LoadedConfig, parse_config
from agent.doctor.check_result import CheckLevel, CheckResult
from agent.doctor.endpoints import STORE_ADVICE, StoreProbe, check_store, probe_store
from agent.prometheus.answers import StoreErrorKind


def said(url: str, tiers: dict[str, Any] | None = None) -> list[CheckResult]:
    config = parse_config({"role": "fleet", "store": {"url": url, "timeout": "60s"}, "tiers": tiers or {}})
    loaded = LoadedConfig(path=Path("sizewatch.yaml"), config=config, plan=None, warnings=())
    return list(check_store(probe_store(loaded, time.time), loaded))


@pytest.mark.server
def test_a_store_that_answers_is_one_good_line(tmp_path: Path) -> None:
    with victoria_metrics(tmp_path) as there:
        (found,) = said(there.url)
    assert found.level is CheckLevel.OK
    assert found.text.startswith(f"{there.url}: answered in ")


def test_without_a_store_nothing_is_said() -> None:
    loaded = LoadedConfig(path=Path("sizewatch.yaml"), config=parse_config({}), plan=None, warnings=())
    assert probe_store(loaded, time.time) is None


@pytest.mark.server
def test_each_tier_is_counted_in_the_store_and_one_of_which_nothing_is_told_says_what_to_do(tmp_path: Path) -> None:
    tiers = {
        "mine": {"from": "engines", "selector": 'job="mine"'},
        "lost": {"from": "engines", "selector": 'job="lost"'},
        "told": {},
        "untold": {},
    }
    now = time.time()
    with victoria_metrics(tmp_path) as there:
        there.write(
            [
                *(("up", {"job": "mine", "instance": f"i{n}"}, now - 31, 1.0) for n in range(3)),
                ("sizewatch_target_up", {"tier": "told", "replica": "r"}, now - 31, 1.0),
            ]
        )
        answered, *found = said(there.url, tiers=tiers)
    assert answered.level is CheckLevel.OK
    texts = {one.text: one for one in found}
    assert texts["mine: 3 replicas in it"].level is CheckLevel.OK
    assert texts["told: 1 replica in it"].level is CheckLevel.OK
    assert "tiers.lost.selector" in texts["lost: nothing is told of it"].advice
    assert "role node" in texts["untold: nothing is told of it"].advice


@pytest.mark.parametrize(
    ("act", "words", "kind"),
    [
        (lambda handler: give(handler, b"", 401), "wants credentials", StoreErrorKind.CREDENTIALS),
        (lambda handler: give(handler, b"", 404), "answered 404", StoreErrorKind.WRONG_ANSWER),
        (lambda handler: give(handler, b"", 502, "text/html"), "answered 502", StoreErrorKind.AWAY),
        (lambda handler: give(handler, vector(warnings=["no store"])), "with a warning", StoreErrorKind.PARTIAL),
    ],
)
def test_one_that_does_not_is_a_failing_line_with_what_to_do(
    act: Callable[[Handler], None], words: str, kind: StoreErrorKind
) -> None:
    with serving() as server:
        server.act = act
        (found,) = said(server.url)
    assert found.level is CheckLevel.FAIL
    assert found.text.startswith(f"{server.url}: ")
    assert words in found.text
    assert found.advice == STORE_ADVICE[kind]


def test_there_is_advice_for_every_trouble() -> None:
    assert set(STORE_ADVICE) == set(StoreErrorKind)


def test_one_that_takes_long_to_do_nothing_is_a_warning() -> None:
    config = parse_config({})
    loaded = LoadedConfig(path=Path("sizewatch.yaml"), config=config, plan=None, warnings=())
    (found,) = check_store(StoreProbe(place="http://x", seconds=6.0, timeout_seconds=10.0), loaded)
    assert (found.level, found.text) == (CheckLevel.WARN, "http://x: took 6.0 s to answer a query that reads nothing")
