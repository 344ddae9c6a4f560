"""Rules that compare the traffic with the planned workload and with the benchmark's requests (guide 9.1)."""

from __future__ import annotations

from rules.catalogue.thresholds import ENOUGH_FOR_P99, LONGER, MINIMUM_REQUESTS, SUPPORTED_REQUESTS
from rules.methods.drift import judge_drift, judge_representative
from rules.telemetry.windows import HOUR_SECONDS
from rules.thresholds import Threshold
from rules.verdicts.rule import Rule

ROWS: tuple[Rule, ...] = (
    Rule(
        name="WorkloadDrift",
        stage=30,
        method=judge_drift,
        window_seconds=HOUR_SECONDS,
        thresholds={"factor": LONGER, "minimum_requests": ENOUGH_FOR_P99},
        signal="prompt_tokens_p95",
        unit="tokens",
        about="lengths",
        title="Workload drift",
        meaning="Prompts, outputs or the peak are not those that the tier was sized for. KV cache, batch and fleet "
        "were calculated from them.",
        actions=(
            "Size the tier again: put the lengths and the peak that are seen into the plan's workload",
            "Benchmark again with them before the fleet is changed",
            "Longer: check KV cache utilisation and evictions now; shorter: the fleet may be too large",
        ),
    ),
    Rule(
        name="BenchmarkNotRepresentative",
        stage=90,
        method=judge_representative,
        thresholds={
            "factor": Threshold(2.0, "ratio", "guide 9.1, step 7: a gap over 2x, here at equal load"),
            "disagreement": Threshold(0.25, "ratio", "ours: a steady disagreement above 25 % is data quality"),
            "minimum_requests": MINIMUM_REQUESTS,
            "supported_requests": SUPPORTED_REQUESTS,
        },
        signal="e2e_p50_seconds",
        unit="seconds",
        about="time in the system",
        title="Benchmark not representative",
        meaning="A request stays in the system more than twice as long as in the benchmark at the same completed load. The "
        "benchmark sent other requests, or at another rhythm, and nothing sized from it holds.",
        actions=(
            "Compare prompt and output lengths, prefix hits and adapters with what the benchmark sent",
            "Repeat the benchmark open loop, with lengths and arrivals taken from production",
            "Keep the present fleet until then: the plan's usable rps is not to be trusted",
        ),
    ),
)
