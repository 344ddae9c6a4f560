"""Use of the fleet in work: lengths of the guide as lognormals, and costs that nobody outside the engine knows."""

import copy
import math
import random
from typing import Any

import pytest
import yaml
from days_samples import HOUR, answered
from judging_samples import START, gauge
from making import window
from paths import TESTS

from rules.confidence import Certainty, mean_bounds
from rules.plan.load_bins import TierContext
from rules.plan.load_bins import build_tier_context as view_of
from rules.plan.schema import parse_plan
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Reading
from rules.telemetry.windows import Window
from rules.telemetry.work import CapacityLengths, MeanTokens, work_of
from rules.verdicts.verdict import Status

PLAN = yaml.safe_load((TESTS / "plans" / "guide-h100.yaml").read_text(encoding="utf-8"))
TIER = PLAN["tiers"]["h100-llama70b-fp8"]
USABLE, WEEK = 12.0, 168
Z99 = 2.3263478740408408
HITS = 0.61
"""At 12 rps the benchmark found so much in the prefix cache."""


def drawn(median: float, p99: float, seed: int, count: int = 20_000) -> list[float]:
    """Lengths of a lognormal with this median and P99, at most its P99.99."""
    sigma = math.log(p99 / median) / Z99
    source = random.Random(seed)
    return [median * math.exp(sigma * min(source.gauss(0, 1), 3.719)) for _ in range(count)]


PROMPTS, OUTPUTS = drawn(900, 7200, 1), drawn(180, 900, 2)


def mean(lengths: list[float]) -> float:
    return math.fsum(lengths) / len(lengths)


def tier(means: bool = True, **parts: Any) -> TierContext:
    """The guide's tier; without `means` what its quantiles tell, whatever curve and workload say of means."""
    whole = {**copy.deepcopy(TIER), **parts}
    if not means:
        for kind in ("prompt_tokens", "generation_tokens"):
            del whole["workload"][kind]["mean"]
        for point in whole["curve"]["points"]:
            del point["output_tokens_per_second"]
    return view_of("t", parse_plan({"schema": 1, "tiers": {"t": whole}}).tiers["t"])


def hour(number: int, used: float, longer: float = 1.0, hits: float = HITS, replicas: int = 4) -> Window:
    """An hour of requests of those lengths (prompts so many times as long) at so much of usable rps."""
    seconds = replicas * HOUR
    finished = used * USABLE * seconds
    prompts = finished * mean(PROMPTS) * longer
    counters = {
        "requests_finished": finished,
        "prompt_tokens": prompts,
        "prompt_tokens_computed": prompts * (1 - hits),
        "generation_tokens": finished * mean(OUTPUTS),
    }
    start = START + HOUR * number
    return Window(
        start=start,
        end=start + HOUR,
        expected_seconds=seconds,
        covered_seconds=seconds,
        counters=counters,
        gauges={"kv_utilization": gauge(0.3, 0.0, 0.5, seconds=seconds)},
    )


def reading(context: TierContext, window: Window) -> Reading:
    return read(BY_NAME["fleet_utilization"], window, context.basis)


@pytest.mark.parametrize("true", [0.33, 0.63, 0.70])
@pytest.mark.parametrize(
    ("means", "guardrails", "low", "high"),
    [(True, TIER["guardrails"], -0.03, 0.03), (False, TIER["guardrails"], -1.0, 1.0), (False, None, -1.0, 1.0)],
)
def test_lengths_bound_use(true: float, means: bool, guardrails: object, low: float, high: float) -> None:
    """Planned means give the use itself; quantiles bounds, above 0 where guardrails bound the longest request."""
    found = reading(tier(means=means, guardrails=guardrails), hour(0, true))
    assert true + low <= found.low <= found.high <= true + high
    assert means or found.low <= true <= found.high
    assert (found.low > 0) is (guardrails is not None)
    assert found.value == pytest.approx(true, abs=0.03), "nothing refutes that requests are as long as planned"


@pytest.mark.parametrize("prefill_share", [0.0, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("longer", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("hits", [0.0, HITS, 0.9])
def test_any_token_cost_lies_within_bounds(prefill_share: float, longer: float, hits: float) -> None:
    """At capacity `prefill_share` of a replica's time goes into computed prompt tokens, the rest into outputs."""
    found = reading(tier(), hour(0, 0.5, longer, hits))
    of_prompts = 0.5 * mean(PROMPTS) * longer * (1 - hits) / (1300 * (1 - HITS))
    of_outputs = 0.5 * mean(OUTPUTS) / 230
    true = prefill_share * of_prompts + (1 - prefill_share) * of_outputs
    assert found.low * 0.999 <= true <= found.high * 1.001


@pytest.mark.parametrize(
    ("true", "means", "trap", "headroom"),
    [
        (0.33, True, (Status.WARNING, Certainty.CERTAIN), (Status.OK, Certainty.CERTAIN)),
        (0.63, True, (Status.OK, Certainty.CERTAIN), (Status.OK, Certainty.CERTAIN)),
        (0.97, True, (Status.OK, Certainty.CERTAIN), (Status.WARNING, Certainty.CERTAIN)),
        (0.33, False, (Status.WARNING, Certainty.LIKELY), (Status.OK, Certainty.CERTAIN)),
        (0.63, False, (Status.OK, Certainty.LIKELY), (Status.OK, Certainty.LIKELY)),
        (0.97, False, (Status.OK, Certainty.CERTAIN), (Status.WARNING, Certainty.LIKELY)),
    ],
)
def test_certainty_follows_the_near_bound(
    true: float, means: bool, trap: tuple[Status, Certainty], headroom: tuple[Status, Certainty]
) -> None:
    context, hours = tier(means, fleet={"instances": 4}), [hour(number, true) for number in range(WEEK)]
    found = answered("UtilizationTrap", context, hours)
    assert (found.status, found.certainty) == trap
    found = answered("NoHeadroom", context, hours)
    assert (found.status, found.certainty) == headroom


def test_curve_lengths_precede_workload() -> None:
    curve = copy.deepcopy(TIER["curve"])
    for point in curve["points"]:
        point |= {"prompt_tokens_mean": 2600.0, "prefix_hit_ratio": None}
        point["output_tokens_per_second"] = 115.0 * point["completed_rps"]
    assert tier(curve=curve).capacity.lengths == CapacityLengths(
        prompt_tokens=MeanTokens(low=2600.0, high=2600.0),
        generation_tokens=MeanTokens(low=pytest.approx(115.0), high=pytest.approx(115.0)),
        prefix_hit_ratio=0.6,
    )


@pytest.mark.parametrize("spelt", ["computed", "hits"])
@pytest.mark.parametrize(
    ("planned", "computed", "expected"),
    [
        (0.6, 0.4, (1.0, 1.0, 1.0)),
        (0.6, 0.2, (0.5, 0.5, 0.5)),
        (0.6, None, (1.0, 1.0, 2.5)),
        (None, 0.4, (0.4, 1.0, 1.0)),
        (None, 0.0, (0.0, 1.0, 1.0)),
        (None, None, (1.0, 1.0, 1.0)),
    ],
)
def test_cached_prompts_cost_nothing(
    planned: float | None, computed: float | None, expected: tuple[float, float, float], spelt: str
) -> None:
    lengths = CapacityLengths(prompt_tokens=MeanTokens(low=100.0, high=100.0), prefix_hit_ratio=planned)
    counters = {"requests_finished": 60.0, "prompt_tokens": 6000.0}
    if computed is not None and spelt == "computed":
        counters["prompt_tokens_computed"] = 6000.0 * computed
    elif computed is not None:
        counters |= {"prefix_queried_tokens": 1000.0, "prefix_hit_tokens": 1000.0 * (1 - computed)}
    work = work_of(window(counters=counters), lengths)
    by = work.by_prompts
    assert (by.low, by.best, by.high) == pytest.approx(expected)
    assert (work.total.low, work.total.high) == (None, None), "outputs are not told"


def test_running_requests_are_work() -> None:
    """A minute in which long answers are written and none ends."""
    lengths = CapacityLengths(
        prompt_tokens=MeanTokens(low=100.0, high=100.0), generation_tokens=MeanTokens(low=50.0, high=50.0)
    )
    counters = {"requests_finished": 0.0, "prompt_tokens": 0.0, "generation_tokens": 6000.0}
    total = work_of(window(counters=counters), lengths).total
    assert (total.low, total.value, total.high) == (0.0, 1.0, 2.0)


@pytest.mark.parametrize("seed", range(20))
def test_mean_bounds_hold_for_any_lengths(seed: int) -> None:
    source = random.Random(seed)
    shapes = (
        lambda: source.lognormvariate(5, 2),
        lambda: source.choice((1.0, 4000.0)),
        lambda: 512.0,
        lambda: source.paretovariate(1.2),
    )
    lengths = sorted(shapes[seed % 4]() for _ in range(1000))
    given = {share: lengths[math.ceil(share * 1000) - 1] for share in (0.5, 0.95, 0.99) if source.random() < 0.8}
    given = given or {0.5: lengths[499]}
    low, high = mean_bounds(given, lengths[-1])
    assert low <= mean(lengths) <= high
    assert mean_bounds(given)[1] is None
    assert mean_bounds({0.5: 900, 0.95: 3800, 0.99: 7200}, 12000) == pytest.approx((629.0, 2568.0))
    with pytest.raises(ValueError, match="no quantile"):
        mean_bounds({})
