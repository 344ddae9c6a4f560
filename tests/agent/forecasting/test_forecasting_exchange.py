"""What the daemon and its forecasting process say to each other: whole, or refused."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from forecast_samples import DAY_MINUTES, question, series

from agent.forecasting.history_input import no_forecast
from agent.forecasting.messages import (
    EventMessage,
    ForecastFailure,
    ForecastResponse,
    answer_line,
    parse_request,
    parse_response,
    question_line,
)
from agent.forecasting.tier_forecast import TierForecast


@pytest.fixture(scope="module")
def result() -> ForecastResponse:
    asked = question(replica_hour=10.0, currency="USD")
    return TierForecast(asked, series(3 * DAY_MINUTES + 600)).respond(asked)


def test_a_question_arrives_as_it_was_asked() -> None:
    event = EventMessage(
        name="sale", start=datetime(2026, 11, 27, 8), duration_seconds=3600.0, factor=3.0, recurrence=""
    )
    asked = question(events=(event,), country="DE-BY", hold_seconds=600.0, late_request=0.2, certainty=0.9)
    line = question_line(asked)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert parse_request(line) == asked


def test_an_answer_arrives_as_it_was_given(result: ForecastResponse) -> None:
    assert result.prewarm.worth is not None
    line = answer_line(result)
    assert line.count(b"\n") == 1
    assert parse_response(line) == result
    nothing = no_forecast(question(), "no demand of this tier has been kept yet")
    assert parse_response(answer_line(nothing)) == nothing
    failed = ForecastFailure(tier="h100", trouble="ZeroDivisionError: division by zero")
    assert parse_response(answer_line(failed)) == failed


def changed(result: ForecastResponse, *path: str | int, value: Any) -> bytes:
    document = json.loads(answer_line(result))
    part = document
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("made_at",), "soon"),
        (("unheard_of",), 1),
        (("forecast", "projection", "points", 3, "q50"), 1e9),
        (("forecast", "projection", "points", 3, "q50"), -1.0),
        (("forecast", "projection", "points", 3, "q50"), float("nan")),
        (("now_rps",), float("nan")),
        (("prewarm", "recommendation", "usable_rps"), float("inf")),
        (("forecast", "projection", "points", 3, "t"), 0.0),
        (("forecast", "projection", "covered"), 1_000_000),
        (("prewarm", "recommendation", "replicas"), 2.5),
        (("prewarm", "recommendation", "decided_by"), "dice"),
        (("prewarm", "worth", "ours"), "magic"),
        (("prewarm",), None),
    ],
)
def test_what_is_no_answer_is_refused(result: ForecastResponse, path: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(ValueError):
        parse_response(changed(result, *path, value=value))


@pytest.mark.parametrize(
    "line", [b"", b"Segmentation fault\n", b"{}\n", b"[]\n", b"null\n", b"[" * 100_000, b"\xff\xfe\n", b"NaN\n"]
)
def test_garbage_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        parse_response(line)


def test_a_number_that_is_none_never_leaves_the_process(result: ForecastResponse) -> None:
    broken = no_forecast(question(), "x")
    object.__setattr__(broken, "now_rps", float("nan"))
    with pytest.raises(ValueError):
        answer_line(broken)


def test_forecasters_are_kept_for_settings_and_not_for_moments() -> None:
    asked = question()
    assert asked.settings == question(minutes_later=5, lead_source="21 starts", lead_seconds=179.0).settings
    for changes in ({"lead_seconds": 181.0}, {"zone": "Europe/Berlin"}, {"bin_seconds": 900.0}, {"capacity": None}):
        assert asked.settings != question(**changes).settings
