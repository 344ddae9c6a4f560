"""The catalogue's rows about how requests are given out: to replicas, tiers and pools (guide 6.5, 7.2, 9.3, 9.5).

Owns these rows only; what a row is stands in `rules.verdicts.rule`. A new one is a row here, its runbook section, and its tests.
"""

from __future__ import annotations

from rules.methods.bands import judge_experts
from rules.methods.pools import judge_pools
from rules.methods.prefix_routing import judge_replicas
from rules.methods.tiers import judge_tiers
from rules.verdicts.rule import Rule, Scope, Severity, Threshold

ROWS: tuple[Rule, ...] = (
    Rule(
        name="PrefixRoutingBroken",
        method=judge_replicas,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=3600,
        minimum_seconds=180,
        thresholds={
            "points": Threshold(
                value=0.20,
                unit="ratio",
                source="guide 9.1, step 13 names the hit rate without a number; its 20 points are used",
            ),
            "near": Threshold(
                value=1.5,
                unit="ratio",
                source="guide 7.2: about 1/N; measured on vLLM 0.32: 0.41 of 0.97 over three replicas, 1.3 times 1/N",
            ),
            "spread": Threshold(
                value=1.5, unit="ratio", source="a replica with more than half as much again is chosen by something"
            ),
            "length_change": Threshold(
                value=1.2,
                unit="ratio",
                source="mean prompts of one mix differ by less from minute to minute (recordings)",
            ),
            "eviction_rate": Threshold(value=0.05, unit="ratio", source="guide 9.3: eviction rate below 5 %"),
            "warm_up_seconds": Threshold(
                value=300, unit="seconds", source="measured on vLLM 0.32: a new replica's hits are back after 80 s"
            ),
            "minimum_requests": Threshold(
                value=50, unit="requests", source="of fewer, a prompt moves the rate by points"
            ),
            "chance": Threshold(
                value=0.01, unit="ratio", source="so rarely a routing by prefix is as even as one in turn (chi-square)"
            ),
            "evened": Threshold(
                value=0.05,
                unit="ratio",
                source="shares that even out by less (coefficient of variation) are the same ones",
            ),
        },
        signal="prefix_hit_ratio",
        unit="ratio",
        family="prefix_queried_tokens",
        title="Routing destroys prefix locality",
        meaning="Requests no longer reach the replica that holds their prefix: every replica computes every prefix, and the "
        "hit rate falls to about one replica's divided by their number.",
        actions=(
            "Look at what changed in the router or load balancer when the rate fell; restore routing by prefix",
            "Cap the share of one replica and let what is above overflow: a popular prefix must not make a hot spot",
            "Where the router cannot do it, plan without the hits: benchmark again",
        ),
    ),
    Rule(
        name="MixedTierLoadBalancing",
        method=judge_tiers,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=900,
        minimum_seconds=180,
        thresholds={
            "unequal": Threshold(
                value=1.3, unit="ratio", source="guide 9.1, step 13: 30 % apart is another tier than the one beside it"
            ),
            "follow": Threshold(
                value=0.5,
                unit="ratio",
                source="half way, by logarithm, between an equal share and what the tiers can take",
            ),
            "lengths": Threshold(
                value=1.5, unit="ratio", source="guide 9.5: routed by characteristics, requests differ between tiers"
            ),
            "sets_p99": Threshold(
                value=0.5, unit="ratio", source="guide 9.5: the slower tier sets the P99: most of it"
            ),
            "minimum_requests": Threshold(
                value=30, unit="requests", source="of each tier in the last minutes; fewer share by chance"
            ),
        },
        signal="completed_rps",
        unit="ratio",
        family="requests_finished",
        title="Equal load on unequal tiers",
        meaning="Requests of one model are spread over tiers of different speed as if they were one: the slower tier sets the "
        "P99 of all of them, and the faster one is idle beside it.",
        actions=(
            "Weight the tiers by their usable requests a second, or send each kind of request to the tier that suits it",
            "Keep latency-sensitive requests off the slower tier; give it batch work and what fits its memory",
            "Size and alert each tier on its own: a fleet average hides both",
        ),
    ),
    Rule(
        name="PdRatioOff",
        method=judge_pools,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=1800,
        minimum_seconds=300,
        thresholds={
            "factor": Threshold(
                value=1.3, unit="ratio", source="guide 9.1, step 13: more than 30 % away from what was planned"
            ),
            "busy": Threshold(value=0.4, unit="ratio", source="guide 9.3: below 40 % of its capacity nothing is short"),
        },
        signal="prompt_tokens_per_second",
        unit="ratio",
        family="prompt_tokens",
        needs="disaggregation",
        title="Prefill to decode ratio off",
        meaning="The traffic's prompts and outputs want another ratio of prefill to decode replicas than there is: one pool is "
        "short while the other one waits for it.",
        actions=(
            "Move replicas from the pool that waits to the one that is short, to the split that the sentence names",
            "Short of prefill: first tokens are late. Short of decode: tokens are slow. See which one users feel before moving",
            "If lengths changed for good, put them into the plan's workload and derive both pools again",
        ),
    ),
    Rule(
        name="ExpertImbalance",
        method=judge_experts,
        scope=Scope.TIER,
        loudness=Severity.REPORT,
        window_seconds=900,
        minimum_seconds=180,
        thresholds={
            "below": Threshold(
                value=0.33,
                unit="ratio",
                source="guide 5.4: at 3x the average traffic the group runs at one third of its throughput",
            ),
            "minimum_running": Threshold(
                value=32,
                unit="requests",
                source="with 8 experts a token on 64 GPUs that is 4 tokens each; of fewer, chance alone is near one third",
            ),
        },
        signal="expert_balance_ratio",
        unit="ratio",
        about="balance of experts (mean by busiest GPU)",
        title="Experts unevenly used",
        meaning="Tokens crowd on the experts of a few GPUs. All GPUs of the group wait for the busiest at every layer, so the "
        "replica yields about this share of what its GPUs could do.",
        actions=(
            "Let the engine move and duplicate hot experts (SGLang --enable-eplb, --ep-num-redundant-experts), or more often",
            "Measure which experts this workload uses before settling on an expert-parallel size, and keep that small",
            "Where the engine has a capacity factor, keep it above 1: overflow costs quality without an error",
        ),
    ),
)
