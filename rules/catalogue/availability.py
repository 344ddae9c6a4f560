"""Rules about replicas that do not answer and telemetry that does not move."""

from __future__ import annotations

from rules.catalogue.thresholds import FAULTS, explain
from rules.methods.availability import judge_stale, judge_target_down, judge_tier_down, judge_unknown_too_long
from rules.verdicts.rule import Rule, Scope, Severity, Threshold

ROWS: tuple[Rule, ...] = (
    Rule(
        name="TierDown",
        method=judge_tier_down,
        per_scrape=True,
        loudness=Severity.PAGE,
        window_seconds=0,
        minimum_seconds=0,
        thresholds={
            "misses": Threshold(3, "scrapes", "METRICS trap 12: gone after 2-3 missed scrapes"),
            "seconds": Threshold(120, "seconds", "guide 9.5: a cold start takes 90 s; a restart is over by then"),
        },
        signal="coverage",
        unit="replicas",
        title="Tier down",
        meaning="No replica of the tier answers on its metrics page: nobody is served by it, or nobody can see that they are.",
        actions=(
            "Send one request to the tier's own endpoint: is it down for users, or only for sizewatch",
            "If it is down, let the other tiers of the model or a fallback take its traffic before anything is repaired",
            "If it serves, `sizewatch doctor` says which step of the way to the metrics pages fails",
        ),
        explained_by=explain(*FAULTS),
    ),
    Rule(
        name="TargetDown",
        method=judge_target_down,
        per_scrape=True,
        scope=Scope.REPLICA,
        loudness=Severity.TICKET,
        window_seconds=0,
        minimum_seconds=0,
        thresholds={"misses": Threshold(3, "scrapes", "METRICS trap 12: gone after 2-3 missed scrapes")},
        signal="coverage",
        unit="scrapes",
        title="Target down",
        meaning="The engine's metrics page has not answered for three scrapes: the replica is down, restarting or unreachable.",
        actions=(
            "Look at the replica: is the process up, does /metrics answer from this node",
            "`sizewatch doctor` says which step of the connection fails",
        ),
        explained_by=explain(*FAULTS, "TierDown"),
    ),
    Rule(
        name="TelemetryStale",
        method=judge_stale,
        per_scrape=True,
        scope=Scope.REPLICA,
        loudness=Severity.TICKET,
        window_seconds=0,
        minimum_seconds=0,
        thresholds={"seconds": Threshold(120, "seconds", "METRICS trap 11, 12: well past any single step")},
        signal="coverage",
        unit="seconds",
        title="Telemetry stale",
        meaning="The page answers but does not move although it claims running or waiting requests, or a GPU has not been "
        "read: what is shown is old.",
        actions=(
            "Check whether the engine is stuck: send one request and watch its step counter",
            "After a mass cancel vLLM keeps its last gauges until the next step (issue 29928): then this is harmless",
            "If a GPU is named, check the driver or the exporter on that node",
        ),
        explained_by=explain("TierDown", "TargetDown"),
    ),
    Rule(
        name="UnknownTooLong",
        method=judge_unknown_too_long,
        per_scrape=True,
        loudness=Severity.TICKET,
        window_seconds=0,
        minimum_seconds=0,
        thresholds={
            "seconds": Threshold(3600, "seconds", "the longest that a live rule looks back: a gap has left every hold")
        },
        signal="coverage",
        unit="seconds",
        title="Unknown for too long",
        meaning="Rules that judged this tier before cannot any more, because scrapes fail, counters restart or telemetry stands "
        "still: what they watch for would not be noticed.",
        actions=(
            "Repair what the sentence names: the target's scrape, the restarting process, the stuck page",
            "`sizewatch doctor` says which targets and signals are missing, and why",
        ),
        explained_by=explain("TierDown", "TargetDown", "TelemetryStale"),
    ),
)
