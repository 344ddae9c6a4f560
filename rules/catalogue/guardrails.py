"""Rules about limits that the gateway enforces before a request costs GPU time (guide 9.4)."""

from __future__ import annotations

from rules.catalogue.thresholds import ENOUGH_FOR_P99, LONGER, explain
from rules.methods.drift import judge_drift
from rules.methods.guardrails import judge_guardrail
from rules.telemetry.windows import HOUR_SECONDS
from rules.verdicts.rule import Rule, Severity, Threshold

ROWS: tuple[Rule, ...] = (
    Rule(
        name="GuardrailMissing",
        method=judge_guardrail,
        loudness=Severity.REPORT,
        window_seconds=HOUR_SECONDS,
        thresholds={
            "least_headroom": Threshold(2.0, "ratio", "guide 9.4: 2-3x the P95 input length"),
            "most_headroom": Threshold(3.0, "ratio", "guide 9.4: 2-3x the P95 input length; for outputs of the P99"),
            "minimum_requests": ENOUGH_FOR_P99,
        },
        signal="prompt_tokens_p95",
        unit="tokens",
        metric="max_tokens",
        about="the gateway's limits",
        title="Gateway token limit missing or ineffective",
        meaning="One request can take the KV cache of an instance, or hold its place for minutes: only a limit at the "
        "gateway stops it before it costs anything.",
        actions=(
            "Set the missing limits at the gateway, not in the engine, and write them into the plan",
            "Derive them from observed lengths: P95 of prompts with headroom, never the model's context length",
            "Where a limit is exceeded, find out why the gateway does not enforce it",
        ),
    ),
    Rule(
        name="OutputLengthDrift",
        method=judge_drift,
        loudness=Severity.TICKET,
        window_seconds=HOUR_SECONDS,
        thresholds={
            "factor": LONGER,
            "minimum_requests": ENOUGH_FOR_P99,
        },
        signal="generation_tokens_p99",
        unit="tokens",
        family="generation_tokens_per_request",
        about="P99 output length",
        title="Output length P99 rising",
        meaning="P99 output length is above the plan's (guide 9.4): long answers hold their place in the batch and their KV "
        "blocks, and everybody else waits for them.",
        actions=(
            "Find out which tenant or prompt makes them: a new use, or loops and endless lists; refuse or reroute those",
            "Lower the output limit at the gateway where the use does not need it",
            "If every use is affected, check chat template and stop tokens of the model that was deployed last",
            "If they are meant, put the new P99 into the plan and benchmark again",
        ),
        explained_by=explain("WorkloadDrift"),
    ),
    Rule(
        name="QueueBreakerOff",
        method=judge_guardrail,
        loudness=Severity.REPORT,
        window_seconds=HOUR_SECONDS,
        thresholds={
            "low": Threshold(0.8, "ratio", "guide 9.4: breaker at 80-90 % of objective x arrivals"),
            "high": Threshold(0.9, "ratio", "guide 9.4: breaker at 80-90 % of objective x arrivals"),
            "too_deep": Threshold(1.0, "ratio", "guide 9.4: at objective x arrivals the violation is guaranteed"),
            "too_shallow": Threshold(0.4, "ratio", "half of the guide's 80 %: most of the allowed waiting is refused"),
        },
        signal="arrival_rps",
        unit="requests",
        metric="queue_breaker",
        about="the circuit breaker",
        title="Circuit breaker depth unsuitable",
        meaning="Load is shed only after the objective is broken, or long before it would be (Little's law: waiting time x "
        "arrivals is the queue).",
        actions=(
            "Set the breaker to the depth in the sentence, at the gateway and in the plan",
            "Do so again whenever the objective or the peak changes",
        ),
    ),
)
