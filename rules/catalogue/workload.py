"""The catalogue's rows about the traffic itself: is it what the tier was sized for, and what the benchmark sent?

Owns these rows only; what a row is stands in `rules.verdicts.rule`. A new one is a row here, its runbook section, and its tests.

The catalogue's rows about guardrails: what the gateway should refuse before it costs a GPU anything (guide 9.4).

Owns these rows only; what a row is stands in `rules.verdicts.rule`. A new one is a row here, its runbook section, and its tests.
"""

from __future__ import annotations

from rules.catalogue.benchmark import MINIMUM_REQUESTS, SUPPORTED_REQUESTS
from rules.methods.drift import judge_drift
from rules.methods.guardrails import judge_guardrail
from rules.methods.representative import judge_representative
from rules.verdicts.rule import Rule, Scope, Severity, Threshold

HOUR = 3600.0

LONGER = Threshold(
    value=1.2,
    unit="ratio",
    source="guide 9.1, step 1 gives no number; the safety factor of well-known traffic, 20 % (step 11), covers no more",
)

WORKLOAD_ROWS: tuple[Rule, ...] = (
    Rule(
        name="WorkloadDrift",
        method=judge_drift,
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
        method=judge_representative,
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
        method=judge_drift,
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


ENOUGH = Threshold(value=100, unit="requests", source="of fewer a P99 is the slowest one or none at all")

GUARDRAIL_ROWS: tuple[Rule, ...] = (
    Rule(
        name="GuardrailMissing",
        method=judge_guardrail,
        scope=Scope.TIER,
        loudness=Severity.REPORT,
        window_seconds=HOUR,
        minimum_seconds=180,
        thresholds={
            "least_headroom": Threshold(value=2.0, unit="ratio", source="guide 9.4: 2-3x the P95 input length"),
            "most_headroom": Threshold(
                value=3.0, unit="ratio", source="guide 9.4: 2-3x the P95 input length; for outputs of the P99"
            ),
            "minimum_requests": ENOUGH,
        },
        signal="prompt_tokens_p95",
        unit="tokens",
        metric="max_tokens",
        about="the gateway's limits",
        title="A limit on prompts or outputs is missing, or protects nothing",
        meaning="One request can take the KV cache of an instance, or hold its place for minutes: only a limit at the "
        "gateway stops it before it costs anything.",
        actions=(
            "Set the limits that the sentence names at the gateway, not in the engine, and write them into the plan",
            "Let them follow what is seen: P95 of prompts with headroom, never the model's context length",
            "Where a limit is exceeded, find out why the gateway does not enforce it",
        ),
    ),
    Rule(
        name="RunawayGeneration",
        method=judge_guardrail,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=900,
        minimum_seconds=180,
        thresholds={
            "factor": LONGER,
            "allowed_share": Threshold(
                value=0.01,
                unit="ratio",
                source="guide 9.4 gives no number; a planned P99 leaves 1 % of the answers longer than it",
            ),
            "minimum_requests": ENOUGH,
        },
        signal="generation_tokens_p99",
        unit="ratio",
        family="requests_ended_by_length",
        metric="ended_by_length",
        about="answers that only their limit ended",
        title="Answers run until their token limit",
        meaning="More answers than the plan leaves are longer than its longest and were ended by nothing but their token "
        "limit: loops, endless lists, a lost stop token, or prompts made for it.",
        actions=(
            "Find the tenant or the prompt pattern in the gateway's log, and refuse or reroute it there",
            "Lower the output limit for that use; a limit for each user's requests per second does not help",
            "If every use is affected, check chat template and stop tokens of the model that was deployed last",
        ),
    ),
    Rule(
        name="QueueBreakerOff",
        method=judge_guardrail,
        scope=Scope.TIER,
        loudness=Severity.REPORT,
        window_seconds=HOUR,
        minimum_seconds=180,
        thresholds={
            "low": Threshold(value=0.8, unit="ratio", source="guide 9.4: breaker at 80-90 % of objective x arrivals"),
            "high": Threshold(value=0.9, unit="ratio", source="guide 9.4: breaker at 80-90 % of objective x arrivals"),
            "too_deep": Threshold(
                value=1.0, unit="ratio", source="guide 9.4: at objective x arrivals the violation is guaranteed"
            ),
            "too_shallow": Threshold(
                value=0.4, unit="ratio", source="half of the guide's 80 %: most of the allowed waiting is refused"
            ),
        },
        signal="arrival_rps",
        unit="requests",
        metric="queue_breaker",
        about="the circuit breaker",
        title="The circuit breaker's depth does not fit objective and arrivals",
        meaning="Load is shed only after the objective is broken, or long before it would be (Little's law: waiting time x "
        "arrivals is the queue).",
        actions=(
            "Set the breaker to the depth that the sentence names, at the gateway and in the plan",
            "Do so again whenever the objective or the peak changes",
        ),
    ),
)

ROWS: tuple[Rule, ...] = (*WORKLOAD_ROWS, *GUARDRAIL_ROWS)
