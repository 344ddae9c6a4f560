"""The catalogue's rows about choices that were made when the tier was set up: formats, leads, speculation, adapters.

Owns these rows only; what a row is stands in `rules.verdicts.rule`. A new one is a row here, its runbook section, and its tests.
"""

from __future__ import annotations

from rules.catalogue.benchmark import MINIMUM_REQUESTS
from rules.catalogue.workload import HOUR
from rules.methods.adapters import judge_adapters
from rules.methods.configuration import judge_cold_start, judge_precision
from rules.methods.speculation import SUSPICION, judge_economics
from rules.verdicts.rule import Rule, Scope, Severity, Threshold

CAPABILITY = "compute capability"

_LOSS = (
    "Draft fewer tokens a round, or turn speculation off: measure TPOT and tokens per second with and without it",
    "Check that the draft model belongs to this target model and to the present prompts",
)


def _since(value: float, text: str) -> Threshold:
    return Threshold(value=value, unit=CAPABILITY, source=text)


ROWS: tuple[Rule, ...] = (
    Rule(
        name="AdapterCachePressure",
        method=judge_adapters,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=900,
        minimum_seconds=180,
        thresholds={
            "held_share": Threshold(
                value=0.1,
                unit="ratio",
                source="a tenth of the TTFT objective on average is one request in ten that loses all of it",
            ),
            "waiting": Threshold(value=0.5, unit="adapters", source="half of the time some adapter waits for its turn"),
            "minimum_requests": MINIMUM_REQUESTS,
            "ttft_slo_seconds": Threshold(
                value=2.0, unit="seconds", source="guide 8.3's objective, where the plan has none"
            ),
        },
        signal="adapters_active",
        unit="seconds",
        about="requests held back",
        title="LoRA adapters compete for GPU memory",
        meaning="Requests wait until their adapter has a place in GPU memory: more adapters are used at once than fit. It "
        "looks like prefill interference on some tenants, and no tuning of prefill helps (guide 9.3).",
        actions=(
            "Give adapters more places (--max-loras), or use a lower rank; check the KV cache afterwards: both share memory",
            "Route each adapter to few replicas instead of all to every one",
            "Put max_adapters into the plan's lora, so that it can be compared",
        ),
    ),
    Rule(
        name="SpeculationUneconomic",
        method=judge_economics,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=300,
        minimum_seconds=60,
        thresholds={
            "break_even": Threshold(
                value=1.0, unit="ratio", source="DESIGN 3.7; Leviathan et al. 2023, theorem 3.8: below it, it loses"
            ),
            "minimum_rounds": Threshold(
                value=300, unit="rounds", source="as many as a benchmark point's requests (DESIGN 3.3)"
            ),
            "perfect": Threshold(
                value=0.99,
                unit="ratio",
                source="guide 6.6 calls 70-90 % achievable; vLLM PR 44487: more can be repeated text",
            ),
            "perfect_rounds": Threshold(
                value=1000, unit="rounds", source="ten refusals are expected even at 99 %: no chance"
            ),
        },
        signal="tokens_per_round",
        unit="ratio",
        about="the speed-up by speculation",
        title="Speculation costs more than it yields",
        meaning="The tokens a round yields do not pay for its drafts, so decoding without speculation would be faster; or "
        "they are accepted so well that the text must repeat itself.",
        actions=(
            *_LOSS,
            *SUSPICION,
        ),
    ),
    Rule(
        name="QuantizationMismatch",
        method=judge_precision,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=900,
        minimum_seconds=60,
        thresholds={
            "fp4": _since(10.0, "Blackwell's are the first tensor cores with FP4 (guide 4.3: NVFP4)"),
            "fp8": _since(8.9, "guide 9.5: FP8 is Hopper's and Blackwell's; Ada (8.9) has it too"),
            "int8": _since(7.5, "Turing's are the first data-centre tensor cores with INT8"),
            "bf16": _since(8.0, "Ampere's are the first tensor cores with BF16"),
            "fp16": _since(7.0, "Volta's are the first tensor cores"),
        },
        signal="tpot_mean_seconds",
        unit=CAPABILITY,
        about="compute capability",
        title="A number format that the GPU has no hardware path for",
        meaning="The model runs, converted at every step: the memory may be saved, the planned speed-up is not there. One "
        "artefact does not serve every hardware generation (guide 9.5).",
        actions=(
            "Serve an artefact made for this GPU: INT8 on A100, FP8 from compute capability 8.9 on",
            "Benchmark this tier by itself: the curve of another generation does not hold here",
            "Where the format was chosen for memory alone, say so by raising the threshold for this tier",
        ),
    ),
    Rule(
        name="ColdStartLate",
        method=judge_cold_start,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=HOUR,
        minimum_seconds=60,
        thresholds={
            "factor": Threshold(
                value=1.0,
                unit="ratio",
                source="guide 9.5: the pre-warm lead follows the tier's own measured cold start",
            ),
        },
        signal="cold_start_seconds",
        unit="seconds",
        about="the slowest start",
        title="A cold start took longer than the pre-warm lead",
        meaning="Replicas that are asked for so many seconds ahead come too late: during every scale-up the objective is "
        "missed until they are ready.",
        actions=(
            "Raise cold_start_seconds in the plan to what was measured, so that pre-warming begins early enough",
            "Shorten the start: weights on a local disk, images pulled ahead, compiled graphs kept",
            "Keep more replicas warm until then (fleet.minimum_warm)",
        ),
    ),
)
