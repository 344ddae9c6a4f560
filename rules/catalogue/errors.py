"""The catalogue's rows about requests that were not served: failed ones and refused ones, with all thresholds.

Owns these rows only; what a row is stands in `rules.verdicts.rule`. A new one is a row here, its runbook section, and its tests.
"""

from __future__ import annotations

from rules.catalogue.latency import HOLD_SECONDS, MINIMUM_SECONDS, ladder
from rules.methods.errors import judge_availability, judge_refused
from rules.telemetry.outcomes import FAILED, NO_ROOM
from rules.verdicts.rule import Rule, Scope, Severity, Threshold

ROWS: tuple[Rule, ...] = (
    Rule(
        name="AvailabilityBurn",
        method=judge_availability,
        scope=Scope.TIER,
        loudness=Severity.PAGE,
        window_seconds=HOLD_SECONDS,
        minimum_seconds=60.0,
        thresholds={
            **ladder(),
            "allowed_share": Threshold(
                value=0.01, unit="ratio", source="where the plan has no slo.availability: 99 % are promised"
            ),
        },
        signal="failed_share",
        unit="ratio",
        family=FAILED,
        about="requests that failed",
        title="Requests fail",
        meaning="More requests fail (an answer 5xx, an error of the engine) than the promised availability allows. Whoever "
        "sends them gets no answer. Refused requests, and those that their clients left, are not among them.",
        actions=(
            "Find the replica that fails: the cause below names it. Take it out of the routing and restart it",
            "Read the engine's log from the first failure on: a dead worker, no memory, a transfer that failed",
            "Ask the replica's /health: an engine whose worker died can serve its metrics page and answer only 500",
            "If it began with a new release or a new configuration, go back to the one before",
        ),
    ),
    Rule(
        name="RequestsRefused",
        method=judge_refused,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=HOLD_SECONDS,
        minimum_seconds=MINIMUM_SECONDS,
        thresholds={
            "no_room_share": Threshold(
                value=0.01, unit="ratio", source="as much as the default availability allows to fail"
            ),
            "bad_share": Threshold(
                value=0.05, unit="ratio", source="clients always send some; more is a limit or a client that is wrong"
            ),
            "critical_share": Threshold(
                value=0.5, unit="ratio", source="most requests of the last quarter are refused"
            ),
            "minimum_requests": Threshold(
                value=100, unit="requests", source="of fewer, one per cent is a single request"
            ),
        },
        signal="refused_share",
        unit="ratio",
        family=NO_ROOM,
        about="requests that were refused",
        title="Requests refused",
        meaning="Requests are turned away: because a queue is full, or because nobody here can serve what they ask for. They "
        "are demand that the fleet did not serve.",
        actions=(
            "Refused for want of room: add replicas of this tier, or raise its minimum warm count before the peak",
            "If only one replica refuses, look at the routing before you add any",
            "Answered 4xx: read a few of the answers; prompts too long, a model name or an adapter that is not served",
            "If a gateway retries refused requests, let it wait longer each time: retries keep the queue full",
        ),
    ),
)
