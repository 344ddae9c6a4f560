"""The catalogue's rows about the traffic itself: is it what the tier was sized for, and what the benchmark sent?

Owns these rows only; what a row is stands in `rules.verdicts.rule`. A new one is a row here, its runbook section, and its tests.
"""

from __future__ import annotations

from rules.catalogue.benchmark import MINIMUM_REQUESTS, SUPPORTED_REQUESTS
from rules.verdicts.rule import Rule, Scope, Severity, Threshold, Way

HOUR = 3600.0

LONGER = Threshold(
    value=1.2,
    unit="ratio",
    source="guide 9.1, step 1 gives no number; the safety factor of well-known traffic, 20 % (step 11), covers no more",
)

ROWS: tuple[Rule, ...] = (
    Rule(
        name="WorkloadDrift",
        way=Way.DRIFT,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=HOUR,
        minimum_seconds=180,
        thresholds={
            "factor": LONGER,
            "minimum_requests": Threshold(
                value=100, unit="requests", source="of fewer a P99 is the slowest one or none at all"
            ),
        },
        signal="prompt_tokens_p95",
        unit="tokens",
        about="lengths",
        title="Traffic has moved away from the planned workload",
        meaning="Prompts, outputs or the peak are not those that the tier was sized for: memory floor, batch and fleet were "
        "all calculated from them.",
        actions=(
            "Go back to step 1: put the lengths and the peak that are seen into the plan's workload",
            "Benchmark again with them before the fleet is changed",
            "Longer: check KV cache utilisation and evictions now; shorter: the fleet may be too large",
        ),
    ),
    Rule(
        name="BenchmarkNotRepresentative",
        way=Way.REPRESENTATIVE,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=900,
        minimum_seconds=180,
        thresholds={
            "factor": Threshold(
                value=2.0, unit="ratio", source="guide 9.1, step 7: a gap over 2x; DESIGN 3.11 (iii): at equal load"
            ),
            "disagreement": Threshold(
                value=0.25, unit="ratio", source="DESIGN 3.11 (ii): a steady disagreement above 25 % is data quality"
            ),
            "minimum_requests": MINIMUM_REQUESTS,
            "supported_requests": SUPPORTED_REQUESTS,
        },
        signal="e2e_p50_seconds",
        unit="seconds",
        about="time in the system",
        title="The benchmark does not represent production",
        meaning="A request stays in the system more than twice as long as in the benchmark at the same completed load: the "
        "benchmark sent other requests, or at another rhythm, and nothing sized from it holds.",
        actions=(
            "Compare prompt and output lengths, prefix hits and adapters with what the benchmark sent",
            "Repeat the benchmark open loop, with lengths and arrivals taken from production",
            "Keep the present fleet until then: the plan's usable rps is not to be trusted",
        ),
    ),
    Rule(
        name="OutputLengthDrift",
        way=Way.DRIFT,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=HOUR,
        minimum_seconds=180,
        thresholds={
            "factor": LONGER,
            "minimum_requests": Threshold(
                value=100, unit="requests", source="of fewer a P99 is the slowest one or none at all"
            ),
        },
        signal="generation_tokens_p99",
        unit="tokens",
        family="generation_tokens_per_request",
        about="P99 output length",
        title="The longest answers have become longer",
        meaning="P99 output length is above the plan's (guide 9.4): long answers hold their place in the batch and their KV "
        "blocks, and everybody else waits for them.",
        actions=(
            "Find out which tenant or prompt makes them: a new use, or a runaway",
            "Lower the output limit at the gateway where the use does not need it",
            "If they are meant, put the new P99 into the plan and benchmark again",
        ),
    ),
)
