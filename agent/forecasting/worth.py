"""What pre-warming was worth on a tier's own last week, and how many replicas must stay warm by what happened in it.

Owns which strategies are shown, over which time, and what is said while there is too little. The simulation itself is
`forecast.simulation`'s, the recommendation `forecast.simulation_verdict`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.forecasting.lead_now import outlook
from exporters.prewarm_worth import Strategy
from exporters.prewarm_worth import Worth as Shown
from forecast.lead import run
from forecast.lead_signals import filled
from forecast.newsvendor import MinimumWarm, excess, minimum_warm
from forecast.prewarm import asked, lead_minutes
from forecast.series import Array
from forecast.simulation import Outcome, World
from forecast.simulation_history import BOLDER
from forecast.simulation_minutes import DAY_MINUTES, MINUTE_SECONDS
from forecast.simulation_verdict import Choice, Worth, worth

WEEK_MINUTES = 7 * DAY_MINUTES
LEAST_MINUTES = DAY_MINUTES
"""Less than a day says nothing of the night."""

REACTING = "reacting"
OURS, PERFECT, STATIC = "pre-warming", "perfect foresight", "static peak"
SHOWN_UTILISATIONS = (0.5, 0.6, 0.7, 0.8, 0.9)

TOO_SHORT = "it takes two days to learn from and one to try it on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A tier's minutes (requests per second; `factors` are by how much known events multiplied them) up to `end`, unix
    seconds, and how it is scaled. Rates may be NaN, at least one is known."""

    rates: Array
    factors: Array
    end: float
    zone: str
    bin_minutes: int
    lead_seconds: float
    certainty: float
    usable_rps: float
    hold: int | None
    replica_hour: float | None
    currency: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lately:
    """The last week, or as much of it as could have been pre-warmed for, and what would have been asked for in each minute:
    at the certainty in use (`ours`), and at lower ones."""

    world: World
    ours: Array
    bolder: tuple[Array, ...]


def lately(past: Past) -> Lately | None:
    """What would have been said in the last week, each minute by what was known then; None where that is less than a day."""
    lead = lead_minutes(past.lead_seconds)
    usual = unscaled(past.rates, past.factors)
    if not np.isfinite(usual).any():
        return None
    said = run(usual, outlook(usual, past.bin_minutes, lead, len(usual) + 1), lead)
    ahead = np.concatenate([past.factors, np.full(lead + 1, past.factors[-1])])[lead : lead + len(usual) + 1]
    levels = (past.certainty, *(level for level in BOLDER if level < past.certainty))
    quantiles = [said.quantile(level) * ahead for level in levels]
    known = np.flatnonzero(np.isfinite(quantiles[0][:-1]))
    start = max(1, len(usual) - WEEK_MINUTES, int(known[0]) if len(known) else len(usual))
    if len(usual) - start < LEAST_MINUTES:
        return None
    demand = filled(past.rates)
    world = World(demand=demand[start:], before=float(demand[start - 1]), capacity=past.usable_rps, lead=lead)
    ours, *bolder = (one[start:-1] for one in quantiles)
    return Lately(world=world, ours=ours, bolder=tuple(bolder))


def worth_lately(past: Past, week: Lately, minimum: int) -> Shown:
    """Strategies side by side over that time, with so many replicas warm at least."""
    fleets = [asked(week.world, one, minimum=minimum, hold=past.hold) for one in (week.ours, *week.bolder)]
    return _shown(past, week.world.demand, worth(week.world, fleets[0], fleets[1:], minimum=minimum))


def floor(past: Past, week: Lately, ratio: float, at_least: int) -> MinimumWarm:
    """The newsvendor's minimum warm count at this critical ratio, from how far demand went beyond what was ready then."""
    ready = asked(week.world, week.ours, minimum=0, hold=past.hold).ready
    found = excess(week.world.demand, ready, past.usable_rps, week.world.lead)
    return minimum_warm(found, ratio, at_least=at_least)


def unscaled(rates: Array, factors: Array) -> Array:
    """What would have come without known events; NaN where an event left too little to tell."""
    usual: Array = np.where(factors > 0.01, rates / np.maximum(factors, 0.01), np.nan)
    return usual


def _shown(past: Past, demand: Array, found: Worth) -> Shown:
    requests = float(demand.sum() * MINUTE_SECONDS)
    minutes = len(demand)
    reacting = {_reacting(one): outcome for one, outcome in found.reacting}
    best = _cheapest(found)
    named = {
        STATIC: found.static,
        **{_reacting(one): reacting[_reacting(one)] for one in SHOWN_UTILISATIONS},
        best: reacting[best],
        OURS: found.prewarmed,
        PERFECT: found.foresight,
    }
    return Shown(
        start=past.end - minutes * MINUTE_SECONDS,
        end=past.end,
        zone=past.zone,
        requests=requests,
        strategies=tuple(_strategy(name, one, requests, minutes, past.replica_hour) for name, one in named.items()),
        ours=OURS,
        perfect=PERFECT,
        recommended=OURS if found.choice is Choice.PREWARM else best,
        reason=found.sentence[0].upper() + found.sentence[1:] + ".",
        currency=past.currency,
    )


def _reacting(utilisation: float) -> str:
    return f"{REACTING} at {utilisation:.0%}"


def _cheapest(found: Worth) -> str:
    """The reacting that costs least of those with no more violations than the comparison was made at; else the most careful."""
    fair = [(one, outcome) for one, outcome in found.reacting if outcome.violated <= found.equal_violated]
    utilisation, _ = min(fair or found.reacting, key=lambda pair: pair[1].replica_hours if fair else pair[1].violated)
    return _reacting(utilisation)


def _strategy(name: str, one: Outcome, requests: float, minutes: int, replica_hour: float | None) -> Strategy:
    return Strategy(
        name=name,
        violation_minutes=one.violated * minutes,
        late_requests=one.late * requests,
        replica_hours=one.replica_hours,
        money=None if replica_hour is None else one.cost(replica_hour),
    )


def reacting_beside(shown: Shown) -> str:
    """The reacting that ours is to be compared with: the cheapest that is short of capacity no longer than ours, else the one
    that is short the least."""
    ours = next(one for one in shown.strategies if one.name == shown.ours)
    others = [one for one in shown.strategies if one.name.startswith(REACTING)]
    fair = [one for one in others if one.violation_minutes <= ours.violation_minutes]
    if fair:
        return min(fair, key=lambda one: one.replica_hours).name
    return min(others, key=lambda one: one.violation_minutes).name
