"""Hours of a small tier for the tests of rules over days: two replicas by default, of a plan that can take 6 rps each.

A replica is one GPU at 2.5 USD an hour, so a replica-day costs 60 USD. The plan never scales below one replica.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import judging_samples
from judging_samples import START, gauge

from rules.evaluator import rule_evaluation
from rules.plan.load_bins import BinnedWindow, TierContext, bin_window
from rules.telemetry.windows import Window
from rules.verdicts.verdict import RuleResult

HOUR = 3600.0
USABLE_RPS = 6.0
PROMPT_TOKENS, OUTPUT_TOKENS = 400.0, 100.0
"""Mean tokens a request, planned and as the hours have them."""

FLEET = {
    "fleet": {"instances": 4, "minimum_warm": 1},
    "cost": {"gpu_hour_price": 2.5, "currency": "USD"},
    "workload": {"prompt_tokens": {"mean": PROMPT_TOKENS}, "generation_tokens": {"mean": OUTPUT_TOKENS}},
}


def context(*changes: Mapping[str, Any], **parts: Any) -> TierContext:
    """The view of the tier with its price and its minimum warm count, planned for the hours' lengths."""
    return judging_samples.context(*changes, **{**FLEET, **parts})


def hour(number: float, used: float = 0.5, replicas: float = 2, **more: Any) -> Window:
    """The hour `number` hours after START at so much of the usable rate, all replicas together.

    `kv` and `kv_most` (mean and highest level), `waiting`, `gpu`, `tokens` (a request) and `covered` (share) by keyword; None
    leaves the family out. Other keywords replace the window's own fields.
    """
    seen = {"kv": 0.3, "kv_most": 0.5, "waiting": 0.0, "gpu": 0.3, "tokens": OUTPUT_TOKENS, "covered": 1.0} | more
    due = replicas * HOUR
    seconds = due * seen.pop("covered")
    finished = used * USABLE_RPS * seconds
    tokens, gpu, kv, most, waiting = (seen.pop(name) for name in ("tokens", "gpu", "kv", "kv_most", "waiting"))
    counters = {"requests_finished": finished, "prompt_tokens": PROMPT_TOKENS * finished}
    counters |= {"generation_tokens": tokens * finished, **seen.pop("counters", {})}
    if gpu is not None:
        counters |= {"gpu_busy_seconds": gpu * seconds, "gpu_busy_covered_seconds": seconds}
    gauges = {"requests_running": gauge(2.0, seconds=seconds), **seen.pop("gauges", {})}
    if kv is not None:
        gauges["kv_utilization"] = gauge(kv, 0.0, max(kv, most), seconds=seconds)
    if waiting is not None:
        gauges["requests_waiting"] = gauge(waiting, 0.0, waiting, seconds=seconds)
    start = START + HOUR * number
    span = {"start": start, "end": start + HOUR, "expected_seconds": due, "covered_seconds": seconds}
    return Window(**{**span, "counters": counters, "gauges": gauges, **seen})


def hours(count: int, make: Callable[[int], Window] = hour, first: int = 0) -> list[Window]:
    """So many hours, made by their number."""
    return [make(number) for number in range(first, first + count)]


def binned(several: Iterable[Window]) -> list[BinnedWindow]:
    return [bin_window(one, None, None) for one in several]


def answered(rule: str, context: TierContext, several: list[Window], now: float | None = None) -> RuleResult:
    """What a rule says of these hours, by the way of the daemon; at the end of the last of them unless another time is given."""
    at = max(one.end for one in several) if now is None else now
    return next(a for a in rule_evaluation.evaluate_long_rules(context, binned(several), at) if a.rule == rule)
