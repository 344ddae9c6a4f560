"""What the doctor says of forecasts, with the real process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent import doctor_forecast
from agent.config import Loaded, parse_config
from agent.doctor_findings import Level
from agent.doctor_forecast import ForecastSeen, forecast, look
from agent.forecasting.child import MIB


def loaded(**keys: Any) -> Loaded:
    config = parse_config(keys, environment={})
    return Loaded(path=Path("sizewatch.yaml"), config=config, plan=None, warnings=())


def test_the_process_is_begun_and_its_memory_told() -> None:
    one = loaded()
    seen = look(one.config)
    assert seen is not None
    assert seen.trouble == ""
    assert 30 * MIB < seen.memory_bytes < 300 * MIB
    first, *more = forecast(seen, one)
    assert first.level is Level.OK
    assert first.text == (
        f"its process starts: its libraries take {seen.memory_bytes // MIB} MiB, it may take 512 MiB for a tier"
    )
    assert bool(more) == bool(seen.no_trees)


def test_without_the_systems_library_trees_are_left_out_and_what_to_install_is_said() -> None:
    seen = ForecastSeen(memory_bytes=90 * MIB, no_trees="libgomp.so.1: cannot open shared object file\nmore")
    _, warning = forecast(seen, loaded())
    assert warning.level is Level.WARN
    assert warning.text == "boosted trees are left out (libgomp.so.1: cannot open shared object file)"
    assert warning.advice.startswith("install libgomp1")


def test_a_process_that_does_not_fit_its_memory_is_a_failing_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_forecast, "MEMORY_BYTES", 8 * MIB)
    one = loaded()
    seen = look(one.config)
    (found,) = forecast(seen, one)
    assert found.level is Level.FAIL
    assert found.text.startswith("its process does not start: ")


def test_where_nothing_is_forecast_nothing_is_begun_and_it_is_said() -> None:
    off, node = loaded(forecast={"enabled": False}), loaded(role="node")
    assert look(off.config) is None
    assert [f.text for f in forecast(None, off)] == ["off (forecast.enabled: false)"]
    assert look(node.config) is None
    assert [f.text for f in forecast(None, node)] == ["none: this agent keeps no history"]


def test_a_part_of_a_country_that_is_none_is_a_failing_line() -> None:
    one = loaded(forecast={"country": "DE-XX"})
    found, *_ = forecast(look(one.config), one)
    assert found.level is Level.FAIL
    assert found.text.startswith("forecast.country: DE has no part 'XX' with holidays of its own; known: BB, BE, BW")
    right = loaded(forecast={"country": "DE-BY"})
    assert Level.FAIL not in {finding.level for finding in forecast(look(right.config), right)}
