"""The forecast's part of the configuration: what may stand in it, and what is said of all the rest."""

from datetime import UTC, date, datetime
from typing import Any

import jsonschema
import numpy as np
import pytest

from agent.config.config import Config
from agent.config.forecast import ForecastConfig
from agent.config.load import config_schema, parse_config
from agent.errors import ConfigError
from agent.forecasting.responses import sundays
from forecast.series.binned import Series
from forecast.series.calendar import recurrence

TARGET = {"url": "http://127.0.0.1:8000/metrics", "tier": "cpu-small"}
SALE: dict[str, Any] = {"name": "sale", "start": "2026-11-27", "duration": "1d", "factor": 3.0}


def config(**keys: Any) -> Config:
    return parse_config({"targets": [TARGET], "forecast": keys}, environment={})


def problems(**keys: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        config(**keys)
    return caught.value.problems


def test_forecast_has_defaults() -> None:
    found = parse_config({}, environment={}).forecast
    assert found == ForecastConfig()
    assert (found.enabled, found.zone, found.country, found.events) == (True, "UTC", None, ())
    assert (found.bin_seconds, found.quantile, found.scale_down_hold_seconds) == (300.0, None, None)
    assert found.late_request_cost == {}


def test_every_forecast_key_is_taken() -> None:
    found = config(
        enabled=False,
        zone="Europe/Berlin",
        country="DE-BY",
        events=[SALE, {**SALE, "name": "invoices", "recurrence": "rrule:freq=monthly;bymonthday=1"}],
        bin="15m",
        quantile=0.95,
        late_request_cost={"cpu-small": 0.02},
        scale_down_hold="0s",
    ).forecast
    assert (found.enabled, found.zone, found.country) == (False, "Europe/Berlin", "DE-BY")
    assert (found.bin_seconds, found.quantile, found.scale_down_hold_seconds) == (900.0, 0.95, 0.0)
    assert found.late_request_cost == {"cpu-small": 0.02}
    once, monthly = found.events
    start = datetime(2026, 11, 27)
    assert (once.start, once.duration_seconds, once.factor, once.recurrence) == (start, 86_400.0, 3.0, None)
    assert recurrence(monthly).between(datetime(2027, 1, 2), datetime(2027, 2, 2)) == [datetime(2027, 2, 1)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-11-27", datetime(2026, 11, 27)),
        ("2026-11-27T08:30", datetime(2026, 11, 27, 8, 30)),
        ("2026-11-27 08:30:15", datetime(2026, 11, 27, 8, 30, 15)),
        (date(2026, 11, 27), datetime(2026, 11, 27)),
        (datetime(2026, 11, 27, 8), datetime(2026, 11, 27, 8)),
    ],
)
def test_start_is_a_day_or_a_time(given: object, expected: datetime) -> None:
    assert config(events=[{**SALE, "start": given}]).forecast.events[0].start == expected


NO_TIME = "must be a valid datetime or date"
MINUTES = "bin: must be whole minutes that an hour holds a whole number of, such as 2m, 5m or 15m, not"
NO_RULE = "events[0].recurrence: must be a recurrence rule such as FREQ=WEEKLY"


def event(**keys: object) -> dict[str, Any]:
    return {"events": [{**SALE, **keys}]}


NO_DURATION = "must be a number with its unit, such as 500ms, 15s, 5m, 1h, 7d or 13w, not"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"zone": "Europe/Berln"}, "zone: is no time zone; write Europe/Berlin or UTC"),
        ({"zone": "../passwd"}, "zone: is no time zone; write Europe/Berlin or UTC"),
        ({"zone": 1}, "zone: must be a valid string"),
        ({"zone": ""}, "zone: must not be empty"),
        ({"country": "Germany"}, "country: must be a country by ISO 3166 such as 'NO', or a part such as DE-BY"),
        ({"country": "XQ"}, "country: XQ is no country of ISO 3166"),
        ({"country": "UK"}, "country: UK is no country of ISO 3166 (the United Kingdom is GB)"),
        ({"country": False}, "country: must be a country by ISO 3166 such as 'NO', or a part such as DE-BY"),
        ({"bin": "7m"}, f"{MINUTES} 7m"),
        ({"bin": "150s"}, f"{MINUTES} 150s"),
        ({"bin": "30s"}, "bin: must be from 2m to 1h, not 30s"),
        ({"bin": 300}, f"bin: {NO_DURATION} '300'"),
        ({"quantile": 99}, "quantile: must be at most 0.999"),
        ({"quantile": 0.3}, "quantile: must be at least 0.5"),
        ({"scale_down_hold": "2d"}, "scale_down_hold: must be from 0ms to 1d, not 2d"),
        ({"late_request_cost": 0.1}, "late_request_cost: must be a mapping of keys to values"),
        ({"late_request_cost": {"cpu-small": 0}}, "late_request_cost.cpu-small: must be greater than 0"),
        (
            {"late_request_cost": {"cpu-smal": 1.0}},
            "late_request_cost.cpu-smal: is not a tier of targets or plan; did you mean",
        ),
        ({"lead": "5m"}, "lead: is not a key"),
        ({"event": []}, "event: is not a key"),
        (event(start="9999-12-31"), "events[0].start: must be less than 2200-01-01"),
        (
            event(recurrence="FREQ=DAILY;BYHOUR=8,9;BYMINUTE=0,1,2,3,4,5,6,7,8,9,10,11,12"),
            "events[0].recurrence: comes 26 times a day; it must be 1 to 24: one event may last longer",
        ),
        ({"events": SALE}, "events: must be a list"),
        (event(starts="x"), "events[0].starts: is not a key"),
        ({"events": [{"name": "sale"}]}, "events[0].start: is missing"),
        (event(name=""), "events[0].name: must not be empty"),
        (event(start="27.11.2026"), f"events[0].start: {NO_TIME}"),
        (event(start="2026-02-30"), f"events[0].start: {NO_TIME}"),
        (event(start=20261127), "events[0].start: must be at least 2000-01-01"),
        (event(start="2026-11-27T08:00Z"), "events[0].start: must not have timezone info"),
        (event(duration="30s"), "events[0].duration: must be from 1m to 92d, not 30s"),
        (event(factor=-1), "events[0].factor: must be at least 0"),
        (event(factor="3x"), "events[0].factor: must be a valid number"),
        ({"events": [SALE, SALE]}, "events[1].name: is that of events[0]; a time that comes again is one event with a"),
        (event(recurrence="every friday"), NO_RULE),
        (event(recurrence="FREQ=HOURLY"), NO_RULE),
        (
            event(recurrence="FREQ=WEEKLY;BYDAYS=MO"),
            "events[0].recurrence: is no recurrence rule of RFC 5545 in local time (unknown parameter 'BYDAYS')",
        ),
        (
            event(recurrence="FREQ=WEEKLY;BYDAY=XX"),
            "events[0].recurrence: is no recurrence rule of RFC 5545 in local time (invalid 'BYDAY': XX)",
        ),
        (
            event(recurrence="FREQ=DAILY;UNTIL=20261231T000000Z"),
            "events[0].recurrence: is no recurrence rule of RFC 5545 in local time (RRULE UNTIL values",
        ),
        (event(recurrence="FREQ=DAILY;INTERVAL=0"), NO_RULE),
        (event(recurrence="FREQ=DAILY;INTERVAL=-1"), NO_RULE),
        (event(recurrence="FREQ=DAILY;COUNT"), NO_RULE),
        (event(recurrence="FREQ=YEARLY;BYMONTH=13"), "events[0].recurrence: comes 0 times a day"),
        (event(recurrence="INTERVAL=2"), NO_RULE),
        (event(recurrence="FREQ=DAILY;FREQ=DAILY"), NO_RULE),
        (event(recurrence="FREQ=DAILY;COUNT=2;UNTIL=20261231"), NO_RULE),
        (event(recurrence=7), "events[0].recurrence: must be a valid string"),
    ],
)
def test_mistake_is_said_once_with_its_path(keys: dict[str, Any], expected: str) -> None:
    found = problems(**keys)
    said = [problem for problem in found if problem.startswith(f"forecast.{expected}")]
    assert len(said) == 1, found
    assert all(problem.startswith("forecast.") for problem in found)


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=8,20",
        "FREQ=MONTHLY;BYDAY=1MO",
        "FREQ=MONTHLY;BYDAY=-1FR;COUNT=12",
        "FREQ=YEARLY;BYMONTH=11;BYDAY=4TH",
        "FREQ=MONTHLY;BYMONTHDAY=-1,15;INTERVAL=2",
        "FREQ=YEARLY;BYWEEKNO=20;WKST=SU;UNTIL=20301231T235959",
        "FREQ=DAILY;BYSETPOS=1;BYHOUR=6;BYMINUTE=30;BYSECOND=0",
        "FREQ=YEARLY;BYYEARDAY=100",
    ],
)
def test_accepted_rules_are_rules_to_the_forecast(rule: str) -> None:
    (one,) = config(events=[{**SALE, "recurrence": rule}]).forecast.events
    assert recurrence(one).after(datetime(2026, 11, 27)) is not None


def test_holidays_follow_the_zone() -> None:
    christmas_eve = datetime(2026, 12, 24, 22, tzinfo=UTC).timestamp()
    hours = Series(start=christmas_eve, bin_seconds=3600.0, values=np.zeros(1), zone="Europe/Berlin")
    assert set(sundays("DE", hours, 25)) == {date(2026, 12, 25)}
    assert sundays(None, hours, 25) == {}


def test_unknown_part_of_a_country_is_told() -> None:
    with pytest.raises(
        ConfigError, match=r"^forecast\.country: DE has no part 'XX' with holidays of its own; known: BB, BE"
    ):
        sundays("DE-XX", Series(start=0.0, bin_seconds=3600.0, values=np.zeros(1)), 1)


def test_schema_takes_what_the_program_takes() -> None:
    check = jsonschema.Draft202012Validator(config_schema())
    good = {"forecast": {"zone": "UTC", "country": "DE-BY", "bin": "15m", "events": [SALE]}}
    assert list(check.iter_errors(good)) == []
    for wrong in ({"bin": 5}, {"country": "Germany"}, event(start="soon"), {"quantile": 2}):
        assert list(check.iter_errors({"forecast": wrong})), wrong
