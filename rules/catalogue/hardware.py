"""The catalogue's rows about GPUs themselves: memory, compute, throttling and faults (guide 9.3), with all thresholds.

Owns these rows only; what a row is stands in `rules.verdicts.rule`. A new one is a row here, its runbook section, and its tests.

The catalogue's rows about what is watched: targets that do not answer, telemetry that does not move.

Owns these rows only; what a row is stands in `rules.verdicts.rule`. A new one is a row here, its runbook section, and its tests.
"""

from __future__ import annotations

from rules.catalogue.templates import BAND_SECONDS, band
from rules.methods.availability import judge_stale, judge_target_down, judge_tier_down, judge_unknown_too_long
from rules.methods.events import judge_faults
from rules.verdicts.rule import Condition, Rule, Scope, Severity, Threshold


def _faults(
    name: str, signal: str, family: str, about: str, title: str, meaning: str, actions: tuple[str, ...]
) -> Rule:
    return Rule(
        name=name,
        method=judge_faults,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=BAND_SECONDS,
        minimum_seconds=60.0,
        thresholds={"events": Threshold(value=1, unit="events", source="none is normal (METRICS trap 16: by change)")},
        signal=signal,
        unit="events",
        family=family,
        about=about,
        title=title,
        meaning=meaning,
        actions=actions,
    )


HARDWARE_ROWS: tuple[Rule, ...] = (
    band(
        "GpuMemoryLow",
        loudness=Severity.REPORT,
        thresholds={
            "below": Threshold(value=0.70, unit="ratio", source="guide 9.3: below 70 % is over-provisioned on memory")
        },
        signal="gpu_memory_utilization",
        condition=Condition.SERVING,
        about="GPU memory in use",
        title="GPU memory largely unused",
        meaning="The GPUs have more memory than this model and its KV cache use: a smaller GPU, or a larger cache, would do. "
        "Engines that reserve their memory at start (vLLM, SGLang, TensorRT-LLM) use what their flag says; how full their "
        "cache is says KV cache utilisation.",
        actions=(
            "Raise --gpu-memory-utilization (vLLM) or --mem-fraction-static (SGLang) if the KV cache is short",
            "If the KV cache is not short either, size the next plan on GPUs with less memory",
        ),
    ),
    band(
        "GpuMemoryHigh",
        loudness=Severity.TICKET,
        thresholds={
            "above": Threshold(value=0.95, unit="ratio", source="guide 9.3: above 95 % risks running out on a spike")
        },
        signal="gpu_memory_utilization",
        about="GPU memory in use",
        title="GPU memory nearly full",
        meaning="What is not reserved by the engine (activations, other processes, fragmentation) may not fit at the next spike.",
        actions=(
            "Look for other processes on the GPU: only the engine should be there",
            "Leave the engine less than it has: a spike of activations or a new CUDA graph needs room",
            "Use an FP8 KV cache or quantised weights (guide 7.5) before the next growth of traffic",
        ),
    ),
    band(
        "GpuComputeLow",
        loudness=Severity.REPORT,
        thresholds={"below": Threshold(value=0.60, unit="ratio", source="guide 9.3: 60-85 % during active serving")},
        signal="gpu_utilization",
        condition=Condition.SERVING,
        about="GPU utilisation while serving",
        title="GPU compute low while serving",
        meaning="The GPUs wait although requests are served: batches are too small, or decode is bound by memory bandwidth.",
        actions=(
            "Raise the number of requests at once (--max-num-seqs) while the KV cache has room",
            "At low concurrency evaluate speculative decoding before more hardware (guide 8.5)",
            "If the load is simply low, see UtilizationTrap: the fleet is larger than its traffic",
        ),
    ),
    band(
        "GpuThrottling",
        loudness=Severity.TICKET,
        thresholds={
            "above": Threshold(
                value=0.05,
                unit="ratio",
                source="neither heat nor the board holds a healthy GPU's clocks down; 5 % of the time is no accident",
            )
        },
        signal="gpu_throttled_ratio",
        about="Time in which heat or the board held the clocks down",
        title="GPUs throttled",
        meaning="The GPUs run slower than the ones that were benchmarked: capacity and latency are no longer the plan's.",
        actions=(
            "Look at the node's cooling, fans, power supplies and neighbours; compare temperatures of its GPUs",
            "Move traffic to other nodes until it is mended: more load makes it hotter",
        ),
    ),
    _faults(
        "GpuXid",
        "gpu_fault_events_per_second",
        "gpu_fault_events",
        "GPU faults (XID, AFID)",
        "GPU fault reported by the driver",
        "The driver reported a fault of a GPU. Some codes end the process only, others mean a GPU that must be reset or "
        "replaced; which code it was stands in the metrics.",
        (
            "Look up the code: sizewatch_gpu_fault_events_by_code_total, and the kernel log of the node",
            "Drain the node if the code says hardware (such as 48, 63, 64, 74, 79, 94, 95): a restart does not mend it",
            "Restart the engine if the code says its process (such as 13, 31, 43): and look for its cause",
        ),
    ),
    _faults(
        "GpuEccErrors",
        "gpu_ecc_uncorrectable_errors_per_second",
        "gpu_ecc_uncorrectable_errors",
        "Memory errors that ECC could not correct",
        "GPU memory errors",
        "A GPU's memory gave wrong data that ECC could not mend: the request was lost, and the GPU may be failing.",
        (
            "Drain the node and reset the GPU: rows that failed are remapped at the reset",
            "Replace a GPU whose errors come back, or whose row remapping failed (nvidia-smi -q -d ROW_REMAPPER)",
        ),
    ),
)


TARGET_ROWS: tuple[Rule, ...] = (
    Rule(
        name="TierDown",
        method=judge_tier_down,
        per_scrape=True,
        scope=Scope.TIER,
        loudness=Severity.PAGE,
        window_seconds=0,
        minimum_seconds=0,
        thresholds={
            "misses": Threshold(value=3, unit="scrapes", source="METRICS trap 12: gone after 2-3 missed scrapes"),
            "seconds": Threshold(
                value=120, unit="seconds", source="guide 9.5: a cold start takes 90 s; a restart is over by then"
            ),
        },
        signal="coverage",
        unit="replicas",
        title="Tier down",
        meaning="No replica of the tier answers on its metrics page: nobody is served by it, or nobody can see that they are.",
        actions=(
            "Send one request to the tier's own endpoint: is it down for users, or only for sizewatch",
            "If it is down, let the other tiers of the model or a fallback take its traffic before anything is repaired",
            "If it serves, `sizewatch doctor` says which step of the way to the metrics pages fails",
        ),
    ),
    Rule(
        name="TargetDown",
        method=judge_target_down,
        per_scrape=True,
        scope=Scope.REPLICA,
        loudness=Severity.TICKET,
        window_seconds=0,
        minimum_seconds=0,
        thresholds={
            "misses": Threshold(value=3, unit="scrapes", source="METRICS trap 12: gone after 2-3 missed scrapes")
        },
        signal="coverage",
        unit="scrapes",
        title="Target down",
        meaning="The engine's metrics page has not answered for three scrapes: the replica is down, restarting or unreachable.",
        actions=(
            "Look at the replica: is the process up, does /metrics answer from this node",
            "`sizewatch doctor` says which step of the connection fails",
        ),
    ),
    Rule(
        name="TelemetryStale",
        method=judge_stale,
        per_scrape=True,
        scope=Scope.REPLICA,
        loudness=Severity.TICKET,
        window_seconds=0,
        minimum_seconds=0,
        thresholds={
            "seconds": Threshold(value=120, unit="seconds", source="METRICS trap 11, 12: well past any single step")
        },
        signal="coverage",
        unit="seconds",
        title="Telemetry stale",
        meaning="The page answers but does not move although it claims running or waiting requests, or a GPU has not been "
        "read: what is shown is old.",
        actions=(
            "Check whether the engine is stuck: send one request and watch its step counter",
            "After a mass cancel vLLM keeps its last gauges until the next step (issue 29928): then this is harmless",
            "If a GPU is named, check the driver or the exporter on that node",
        ),
    ),
    Rule(
        name="UnknownTooLong",
        method=judge_unknown_too_long,
        per_scrape=True,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=0,
        minimum_seconds=0,
        thresholds={
            "seconds": Threshold(
                value=3600, unit="seconds", source="the longest that a live rule looks back: a gap has left every hold"
            )
        },
        signal="coverage",
        unit="seconds",
        title="Unknown for too long",
        meaning="Rules that judged this tier before cannot any more, because scrapes fail, counters restart or telemetry stands "
        "still: what they watch for would not be noticed.",
        actions=(
            "Repair what the sentence names: the target's scrape, the restarting process, the stuck page",
            "`sizewatch doctor` says which targets and signals are missing, and why",
        ),
    ),
)

ROWS: tuple[Rule, ...] = (*HARDWARE_ROWS, *TARGET_ROWS)
