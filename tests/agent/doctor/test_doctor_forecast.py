"""What the doctor says of forecasts, with the real process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.config.load import LoadedConfig, parse_config
from agent.doctor import background_jobs
from agent.doctor.background_jobs import ForecastProbe, check_forecast, probe_forecast
from agent.doctor.check_result import CheckLevel
from agent.forecasting.worker import LibraryCheck
from agent.worker.process import MIB


def loaded(**keys: Any) -> LoadedConfig:
    config = parse_config(keys, environment={})
    return LoadedConfig(path=Path("sizewatch.yaml"), config=config, plan=None, warnings=())


def test_the_process_is_begun_and_its_memory_told() -> None:
    one = loaded()
    seen = probe_forecast(one.config)
    assert seen is not None
    assert seen.libraries is not None
    memory_bytes = seen.libraries.memory_bytes
    assert 30 * MIB < memory_bytes < 300 * MIB
    first, *more = check_forecast(seen, one)
    assert first.level is CheckLevel.OK
    assert first.text == (
        f"its process starts: its libraries take {memory_bytes // MIB} MiB, it may take 512 MiB for a tier"
    )
    assert bool(more) == bool(seen.libraries.no_trees)


def test_without_the_systems_library_trees_are_left_out_and_what_to_install_is_said() -> None:
    trees = "libgomp.so.1: cannot open shared object file\nmore"
    libraries = LibraryCheck(memory_bytes=90 * MIB, no_trees=trees, no_holidays="")
    _, warning = check_forecast(ForecastProbe(libraries=libraries), loaded())
    assert warning.level is CheckLevel.WARN
    assert warning.text == "boosted trees are left out (libgomp.so.1: cannot open shared object file)"
    assert warning.advice.startswith("install libgomp1")


def test_a_process_that_does_not_fit_its_memory_is_a_failing_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_jobs, "FORECAST_MEMORY_BYTES", 8 * MIB)
    one = loaded()
    seen = probe_forecast(one.config)
    (found,) = check_forecast(seen, one)
    assert found.level is CheckLevel.FAIL
    assert found.text.startswith("its process does not start: ")


def test_where_nothing_is_forecast_nothing_is_begun_and_it_is_said() -> None:
    off, node = loaded(forecast={"enabled": False}), loaded(role="node")
    assert probe_forecast(off.config) is None
    assert [f.text for f in check_forecast(None, off)] == ["off (forecast.enabled: false)"]
    assert probe_forecast(node.config) is None
    assert [f.text for f in check_forecast(None, node)] == ["none: this agent keeps no history"]


def test_a_part_of_a_country_that_is_none_is_a_failing_line() -> None:
    one = loaded(forecast={"country": "DE-XX"})
    found, *_ = check_forecast(probe_forecast(one.config), one)
    assert found.level is CheckLevel.FAIL
    assert found.text.startswith("forecast.country: DE has no part 'XX' with holidays of its own; known: BB, BE, BW")
    right = loaded(forecast={"country": "DE-BY"})
    assert CheckLevel.FAIL not in {finding.level for finding in check_forecast(probe_forecast(right.config), right)}
