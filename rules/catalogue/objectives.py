"""Rules about latency and availability objectives (guide 9.3)."""

from __future__ import annotations

from rules.catalogue.latency_actions import E2E_BURN_ACTIONS, TPOT_BURN_ACTIONS, TTFT_BURN_ACTIONS
from rules.catalogue.thresholds import ALLOWED_SLOW
from rules.methods.burn_rate import judge_availability, judge_burn, judge_refused
from rules.telemetry.outcomes import FAILED, NO_ROOM
from rules.thresholds import Threshold
from rules.verdicts.rule import Rule, Severity

_LADDER = "SRE workbook ch. 5, table 5-8"
_RUNGS = (
    ("page_fast", 14.4, 3600.0, 300.0, "2 % of a month's budget in an hour"),
    ("page_slow", 6.0, 21_600.0, 1800.0, "5 % in six hours"),
    ("ticket_fast", 3.0, 86_400.0, 7200.0, "10 % in a day"),
    ("ticket_slow", 1.0, 259_200.0, 21_600.0, "10 % in three days"),
)


def _ladder() -> dict[str, Threshold]:
    """Return the pairs of windows with their burn rates, and how many requests they need."""
    thresholds = {}
    for rung, burn, long, short, why in _RUNGS:
        thresholds[f"{rung}_burn"] = Threshold(burn, "times", f"{_LADDER}: {why}")
        thresholds[f"{rung}_long_seconds"] = Threshold(long, "seconds", _LADDER)
        thresholds[f"{rung}_short_seconds"] = Threshold(short, "seconds", f"{_LADDER}: 1/12 of the long")
    thresholds["minimum_requests"] = Threshold(
        50, "requests", "in either window: of fewer the fast page is a handful of requests"
    )
    return thresholds


def _burn(stem: str, stage: int, actions: tuple[str, ...]) -> Rule:
    """Return the rule of an objective."""
    return Rule(
        name=f"{stem.capitalize()}SloBurn",
        stage=stage,
        method=judge_burn,
        reads_windows=False,
        severity=Severity.PAGE,
        minimum_seconds=60.0,
        thresholds={**_ladder(), "allowed_share": ALLOWED_SLOW},
        signal=f"{stem}_p99_seconds",
        family=f"{stem}_seconds",
        needs=f"slo.{stem}_p99_seconds",
        per_request=stem != "itl",
        about=f"requests slower than the {stem.upper()} objective",
        title=f"{stem.upper()} SLO burn",
        meaning="More requests than the objective allows are slower than promised: users feel it. The error budget of the "
        "month is spent faster than it lasts.",
        actions=actions,
    )


ROWS: tuple[Rule, ...] = (
    _burn("ttft", 77, TTFT_BURN_ACTIONS),
    _burn("tpot", 75, TPOT_BURN_ACTIONS),
    _burn("itl", 76, TPOT_BURN_ACTIONS),
    _burn("e2e", 78, E2E_BURN_ACTIONS),
    Rule(
        name="AvailabilityBurn",
        stage=78,
        method=judge_availability,
        reads_windows=False,
        severity=Severity.PAGE,
        minimum_seconds=60.0,
        thresholds={
            **_ladder(),
            "allowed_share": Threshold(0.01, "ratio", "where the plan has no slo.availability: 99 % are promised"),
        },
        signal="failed_share",
        family=FAILED,
        about="requests that failed",
        title="Availability SLO burn",
        meaning="More requests fail (a 5xx response, an error of the engine) than the promised availability allows. Their "
        "clients get no answer. Refused requests, and those that their clients left, are not counted.",
        actions=(
            "Find the replica that fails: the cause below names it. Take it out of the routing and restart it",
            "Read the engine's log from the first failure on: a dead worker, no memory, a transfer that failed",
            "Ask the replica's /health: an engine whose worker died can serve its metrics page and answer only 500",
            "If it began with a new release or a new configuration, go back to the one before",
        ),
    ),
    Rule(
        name="RequestsRefused",
        stage=77,
        method=judge_refused,
        thresholds={
            "no_room_share": Threshold(0.01, "ratio", "as much as the default availability allows to fail"),
            "bad_share": Threshold(
                0.05, "ratio", "clients always send some; more is a limit or a client that is wrong"
            ),
            "critical_share": Threshold(0.5, "ratio", "most requests of the last quarter are refused"),
            "minimum_requests": Threshold(100, "requests", "of fewer, one per cent is a single request"),
        },
        signal="refused_share",
        family=NO_ROOM,
        about="requests that were refused",
        title="Requests refused",
        meaning="Requests are turned away: a queue is full, or no replica can serve what they ask for. They are demand "
        "that the fleet did not serve.",
        actions=(
            "Refused for want of room: add replicas of this tier, or raise its minimum warm count before the peak",
            "If only one replica refuses, look at the routing before you add any",
            "Answered 4xx: read some responses; look for long prompts, unknown model names and unknown adapters",
            "If a gateway retries refused requests, let it wait longer each time: retries keep the queue full",
        ),
    ),
)
