"""The stand-in of `benchmarks/fleet.py` gives the minutes that a real store gives."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from rules.telemetry.windows import Window
from rules.verdicts.verdict import RuleResult

sys.path.append(str(ROOT / "benchmarks"))
from fleet import BEGIN, STAND_IN, Clock, loop_of, pods_of_tiers, series_of_a_replica, source_of
from fleet_stores import Writer, store

REPLICAS, TIERS, GPUS, TURNS = 20, 2, 1, 4


def turns(name: str, folder: Path) -> tuple[list[Window], dict[Any, RuleResult]]:
    """The minutes of all tiers, and the last results."""
    (folder / "store").mkdir(parents=True)
    counts = (str(REPLICAS), str(TIERS), str(GPUS))
    command = (sys.executable, str(ROOT / "benchmarks" / "fleet_stand_in.py"), *counts) if name == STAND_IN else ()
    with store(name, folder / "store", command) as server:
        tiers = pods_of_tiers(REPLICAS, TIERS) if name != STAND_IN else []
        writer = Writer(server.url, tiers, series_of_a_replica(GPUS), 60.0)
        clock = Clock(BEGIN)
        loop, _ = loop_of(folder, server.url, TIERS, clock, history=None)
        for number in range(TURNS):
            clock.now = BEGIN + 60.0 * (number + 1)
            writer.minute(number, clock.now)
            server.flush()
            loop.run_cycle()
            assert source_of(loop).errors == {}
        state = loop.state
    minutes = [one for tier in state.minutes.values() for one in (*tier.binned, *chain.from_iterable(tier.each or ()))]
    return [one.window for one in minutes], {key: rule.result for key, rule in state.rules.items()}


def test_a_stand_in_answers_as_a_store_does(tmp_path: Path) -> None:
    (real, results), (stand_in, told) = (turns(name, tmp_path / name) for name in ("victoria-metrics", STAND_IN))
    assert len(real) > REPLICAS
    # Stores add up in another order.
    for one, other in zip(stand_in, real, strict=True):
        assert numbers(one) == pytest.approx(numbers(other), rel=1e-9, abs=1e-6)
        assert one.gaps == other.gaps
    assert told.keys() == results.keys()
    assert [type(told[key]) for key in results] == [type(result) for result in results.values()]


def numbers(window: Window) -> dict[tuple[str, ...], float]:
    """The numbers of a window by their place in it."""
    found: dict[tuple[str, ...], float] = {("counter", family): value for family, value in window.counters.items()}
    found |= {("start",): window.start, ("end",): window.end, ("covered",): window.covered_seconds}
    found |= {
        ("gauge", family, name): getattr(gauge, name)
        for family, gauge in window.gauges.items()
        for name in ("integral", "seconds", "minimum", "maximum", "samples")
    }
    for family, parts in window.histograms.items():
        for part in parts:
            found |= {(family, str(edge)): count for edge, count in zip(part.edges, part.counts, strict=True)}
            found[family, "total"] = part.total or 0.0
    return found
