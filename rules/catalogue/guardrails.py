"""Rules about limits that the gateway enforces before a request costs GPU time (guide 9.4)."""

from __future__ import annotations

from rules.catalogue.thresholds import ENOUGH_FOR_P99, LONGER
from rules.methods.drift import judge_drift
from rules.telemetry.windows import HOUR_SECONDS
from rules.thresholds import CatalogueRow, Threshold
from rules.verdicts.rule import Rule

ROWS: tuple[Rule, ...] = (
    Rule(
        name="OutputLengthDrift",
        stage=31,
        method=judge_drift,
        window_seconds=HOUR_SECONDS,
        thresholds={"factor": LONGER, "minimum_requests": ENOUGH_FOR_P99},
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
    ),
)

GUARDRAILS = CatalogueRow(
    name="Guardrails",
    thresholds={
        "least_headroom": Threshold(2.0, "ratio", "guide 9.4: 2-3x the P95 input length; for outputs of the P99"),
        "most_headroom": Threshold(3.0, "ratio", "guide 9.4: 2-3x the P95 input length; for outputs of the P99"),
        "minimum_requests": ENOUGH_FOR_P99,
        "low": Threshold(0.8, "ratio", "guide 9.4: breaker at 80-90 % of objective x arrivals"),
        "high": Threshold(0.9, "ratio", "guide 9.4: breaker at 80-90 % of objective x arrivals"),
        "too_deep": Threshold(1.0, "ratio", "guide 9.4: above objective x arrivals the violation is guaranteed"),
    },
)
"""Thresholds of `rules.plan.guardrails`. They are lines of `plan check`, `check` and the report, and have no alert."""
