"""Public holidays of a country or a part of it, from the library `holidays`.

A holiday behaves like a Sunday: pass the days to `forecast.series.calendar.time_of_week`. Four weeks hold one to three
holidays, too few for a factor of their own, but four Sundays. Where that is wrong (a shop on Black Friday), users
configure an event with a factor.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import date
from functools import lru_cache

import holidays


def public_holidays(country: str, days: Sequence[date]) -> Mapping[date, str]:
    """Return the public holidays among `days` with their names. `country` is ISO 3166: DE, or DE-BY for a part.

    Raise ValueError with a readable text for an unknown country or part.
    """
    code, _, part = country.partition("-")
    known = _known()
    if code not in known:
        raise ValueError(f"'{code}' is no country with known holidays{_meant(code, tuple(known))}")
    if part and part not in known[code]:
        parts = ", ".join(known[code]) or "none"
        raise ValueError(f"{code} has no part '{part}' with holidays of its own; known: {parts}")
    if not days:
        return {}
    found = holidays.country_holidays(code, subdiv=part or None, years=range(days[0].year, days[-1].year + 1))
    return {day: found[day] for day in days if day in found}


@lru_cache(maxsize=1)
def _known() -> Mapping[str, Sequence[str]]:
    return holidays.list_supported_countries()


def _meant(code: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(code, known, n=1)
    return f"; did you mean {close[0]}?" if close else "; write the two letters of ISO 3166, such as DE or US"
