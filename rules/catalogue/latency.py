"""The catalogue's rows about what users wait for, and the queue and GPUs behind it (guide 8.1, 9.3), with all thresholds.

Owns these rows, and which levers fit which shape of a latency. What a row is stands in `rules.verdicts.rule`. A new one is a row
here, its runbook section, and its tests.
"""

from __future__ import annotations

from rules.catalogue.benchmark import ALLOWED_SLOW, MINIMUM_REQUESTS
from rules.methods.burn_rate import judge_burn
from rules.methods.shape import judge_shape
from rules.methods.trend import judge_trend
from rules.verdicts.latency_pattern import SEE_THE_LOAD, TPOT_BURN_ACTIONS, TTFT_BURN_ACTIONS, all_levers
from rules.verdicts.rule import Rule, Scope, Severity, Threshold

HOLD_SECONDS = 900.0
MINIMUM_SECONDS = 180.0


_LADDER = "SRE workbook ch. 5, table 5-8"
_RUNGS = (
    ("page_fast", 14.4, 3600.0, 300.0, "2 % of a month's budget in an hour"),
    ("page_slow", 6.0, 21_600.0, 1800.0, "5 % in six hours"),
    ("ticket_fast", 3.0, 86_400.0, 7200.0, "10 % in a day"),
    ("ticket_slow", 1.0, 259_200.0, 21_600.0, "10 % in three days"),
)


def ladder() -> dict[str, Threshold]:
    """The pairs of windows with their burn rates, and how many requests they need."""
    thresholds = {}
    for rung, burn, long, short, why in _RUNGS:
        thresholds[f"{rung}_burn"] = Threshold(value=burn, unit="times", source=f"{_LADDER}: {why}")
        thresholds[f"{rung}_long_seconds"] = Threshold(value=long, unit="seconds", source=_LADDER)
        thresholds[f"{rung}_short_seconds"] = Threshold(
            value=short, unit="seconds", source=f"{_LADDER}: 1/12 of the long"
        )
    thresholds["minimum_requests"] = Threshold(
        value=50, unit="requests", source="in either window: of fewer the fast page is a handful of requests"
    )
    return thresholds


def _burn(name: str, stem: str, title: str, actions: tuple[str, ...]) -> Rule:
    return Rule(
        name=name,
        method=judge_burn,
        scope=Scope.TIER,
        loudness=Severity.PAGE,
        window_seconds=HOLD_SECONDS,
        minimum_seconds=60.0,
        thresholds={**ladder(), "allowed_share": ALLOWED_SLOW},
        signal=f"{stem}_p99_seconds",
        unit="ratio",
        family=f"{stem}_seconds",
        metric=f"{stem}_p99_seconds",
        needs=f"slo.{stem}_p99_seconds",
        about=f"requests slower than the {stem.upper()} objective",
        title=title,
        meaning="More requests than the objective allows are slower than promised, and the month's error budget is being "
        "spent faster than it lasts: users feel it.",
        actions=actions,
    )


def _tail(name: str, stem: str, title: str, actions: tuple[str, ...]) -> Rule:
    return Rule(
        name=name,
        method=judge_shape,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=HOLD_SECONDS,
        minimum_seconds=MINIMUM_SECONDS,
        thresholds={
            "allowed_share": ALLOWED_SLOW,
            "median_share": Threshold(value=0.5, unit="ratio", source="a median within the objective allows half"),
            "minimum_requests": MINIMUM_REQUESTS,
        },
        signal=f"{stem}_p99_seconds",
        unit="seconds",
        family=f"{stem}_seconds",
        metric=f"{stem}_p99_seconds",
        needs=f"slo.{stem}_p99_seconds",
        about=f"{stem.upper()} P99",
        title=title,
        meaning="Requests are slower than promised. Whether only the tail is, or everything, tells causes and levers apart.",
        actions=actions,
    )


ROWS: tuple[Rule, ...] = (
    Rule(
        name="GpuSaturated",
        method=judge_trend,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=HOLD_SECONDS,
        minimum_seconds=MINIMUM_SECONDS,
        thresholds={
            "pegged": Threshold(
                value=0.95, unit="ratio", source="guide 9.3: pegged at 100 %, less what sums round off"
            ),
            "rise": Threshold(value=1.3, unit="ratio", source="as step 13 (guide 9.1): 30 % more is a difference"),
            "minimum_requests": Threshold(
                value=30, unit="requests", source="in the first and in the last third: of fewer chance decides"
            ),
        },
        signal="gpu_utilization",
        unit="ratio",
        family="ttft_seconds",
        metric="ttft_p99_seconds",
        title="GPUs pegged while TTFT rises",
        meaning="The GPUs have no time left and requests wait longer and longer for their first token. Pegged with a stable "
        "TTFT is healthy: the hardware is used.",
        actions=(
            "Chunked prefill, or prefill and decode on replicas of their own: prefill is what saturates",
            "Add replicas of this tier if the load stays",
            "A quantised model needs less time for the same prompts",
        ),
    ),
    Rule(
        name="QueueGrowing",
        method=judge_trend,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=HOLD_SECONDS,
        minimum_seconds=MINIMUM_SECONDS,
        thresholds={
            "waiting": Threshold(value=1, unit="requests", source="one always waits: below it there is no queue"),
            "share": Threshold(
                value=0.02,
                unit="ratio",
                source="measured: a full batch's arrivals and completions differ by 1-3 % a minute",
            ),
        },
        signal="requests_waiting",
        unit="requests",
        family="requests_waiting",
        title="Queue growing",
        meaning="More requests arrive than finish, and the queue grows steadily: every further request waits longer than the one "
        "before. Above the load that replicas take the fleet is too small for its traffic; below it something holds requests up.",
        actions=(SEE_THE_LOAD, *all_levers("QueueGrowing")),
    ),
    Rule(
        name="PastTheKnee",
        method=judge_shape,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=HOLD_SECONDS,
        minimum_seconds=MINIMUM_SECONDS,
        thresholds={
            "ratio": Threshold(
                value=10, unit="times", source="inference guide: P99/P50 above 10 is a tail problem; 8.1: the knee"
            ),
            "allowed_share": ALLOWED_SLOW,
            "minimum_requests": MINIMUM_REQUESTS,
        },
        signal="ttft_p99_seconds",
        unit="times",
        family="ttft_seconds",
        metric="ttft_p99_seconds",
        about="TTFT P99 by P50",
        title="Past the knee: P99 leaves P50",
        meaning="The slowest first tokens have left the median behind. Above the load that a replica can take that is the "
        "knee of its curve; below it a tail of its own.",
        actions=(
            SEE_THE_LOAD,
            *all_levers("PastTheKnee"),
        ),
    ),
    _burn("TtftSloBurn", "ttft", "TTFT objective burning", TTFT_BURN_ACTIONS),
    _burn("TpotSloBurn", "tpot", "TPOT objective burning", TPOT_BURN_ACTIONS),
    _tail("TtftTail", "ttft", "TTFT above its objective: tail or everything", all_levers("TtftTail")),
    _tail("TpotTail", "tpot", "TPOT above its objective: tail or everything", all_levers("TpotTail")),
)
