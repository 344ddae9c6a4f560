"""Formulas of sizing, each with its source.

To add a formula that two places need: a function here, with its worked example as a test.
"""

from __future__ import annotations

import math


def littles_ceiling_rps(c_max: float, slo_seconds: float) -> float:
    """Return the rps at which `c_max` requests in the system take `slo_seconds` each (Little's law).

    Guide 8.3: a plausibility figure and no capacity; 48 / 2 s = 24 rps where 12 were measured. Raise ValueError unless
    both are above 0.
    """
    _positive(c_max=c_max, slo_seconds=slo_seconds)
    return c_max / slo_seconds


def safe_queue_depth(slo_seconds: float, arrival_rps: float) -> float:
    """Return the queue that surely misses the objective: wait x arrivals (guide 9.4, Little's law).

    2 s at 50 rps are 100; the guide's breaker is at 80 to 90 % of it. Raise ValueError unless both are above 0.
    """
    _positive(slo_seconds=slo_seconds, arrival_rps=arrival_rps)
    return slo_seconds * arrival_rps


def spare_replicas(ready: float, utilization: float, target: float) -> float:
    """Return ready replicas beyond those that do the same work at the target: ready x (1 - utilisation / target).

    10 replicas at 30 % with a target of 60 % are 5 too many (guide 9.2). At or above the target none is spare.
    """
    return ready * max(0.0, 1 - utilization / target)


def expected_tokens_per_round(acceptance: float, drafts: int) -> float:
    """Return tokens per verification pass: 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a), a per-token acceptance.

    Leviathan et al. 2023 (arXiv 2211.17192), equation 1; guide 6.6. 0.8 with 5 drafts gives 3.69. Raise ValueError
    unless 0 <= acceptance <= 1 and drafts >= 0.
    """
    _acceptance(acceptance, drafts, least=0)
    return math.fsum(acceptance**i for i in range(drafts + 1))


def acceptance_from_mean_accepted(mean_accepted_per_draft: float, drafts: int) -> float:
    """Return the per-token acceptance a with a + a^2 + ... + a^k = accepted draft tokens per round (DESIGN 3.7).

    Accepted / drafted differs: after the first refused token the rest of the round is lost, so 0.8 with 5 drafts shows
    as 2.69 / 5 = 0.54. Exact at 0 and k. Raise ValueError unless 0 <= mean <= drafts and drafts >= 1.
    """
    _acceptance(0.0, drafts, least=1)
    if not 0 <= mean_accepted_per_draft <= drafts:
        raise ValueError(f"{mean_accepted_per_draft} accepted of {drafts} drafted tokens cannot be")
    if mean_accepted_per_draft in (0, drafts):
        return mean_accepted_per_draft / drafts
    low, high = 0.0, 1.0
    # Sixty halvings reach the precision of a double; the sum rises strictly with a, so there is one answer.
    for _ in range(60):
        middle = (low + high) / 2
        if expected_tokens_per_round(middle, drafts) - 1 < mean_accepted_per_draft:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def speculation_speed_up(
    tokens_per_round: float, drafts: float, draft_step_seconds: float, verify_step_seconds: float
) -> float:
    """Return tokens per second with speculation by those without: tokens a round / (1 + drafts x draft step /
    verification).

    Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.8: a round takes `drafts` draft steps and one verification,
    which takes as long as a plain step. 0.8 of 5 drafts at a tenth of a step each: 3.69 / 1.5 = 2.46. Raise ValueError
    unless tokens and verification are above 0 and drafts and the draft step are at least 0.
    """
    _positive(tokens_per_round=tokens_per_round, verify_step_seconds=verify_step_seconds)
    if not (0 <= drafts < math.inf and 0 <= draft_step_seconds < math.inf):
        raise ValueError(f"{drafts} drafts of {draft_step_seconds} s each cannot be")
    return tokens_per_round / (1 + drafts * draft_step_seconds / verify_step_seconds)


def cost_per_million_tokens(gpu_hours: float, price: float, tokens: float) -> float:
    """Return the price of a million generated tokens: GPU-hours x price / tokens x 1e6 (DESIGN 3.14).

    Guide 9.2 divides by utilisation too, for tokens at full capacity. Measured tokens are already fewer while GPUs
    idle. Raise ValueError for negative GPU-hours or price, and for tokens not above 0.
    """
    _positive(tokens=tokens)
    if not (0 <= gpu_hours < math.inf and 0 <= price < math.inf):
        raise ValueError(f"{gpu_hours} GPU-hours at {price} have no cost")
    return gpu_hours * price / tokens * 1e6


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be a finite number above 0, not {value}")


def _acceptance(acceptance: float, drafts: int, *, least: int) -> None:
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance must be a ratio, 0 to 1, not {acceptance}")
    if drafts < least:
        raise ValueError(f"drafts must be at least {least}, not {drafts}")
