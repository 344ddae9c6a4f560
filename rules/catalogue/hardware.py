"""Rules about disaggregated pools, expert parallelism and GPU faults (guide 5.4, 9.3, 9.5)."""

from __future__ import annotations

from dataclasses import replace

from rules.methods.bands import judge_band, judge_experts, judge_faults
from rules.methods.pools import judge_pools
from rules.thresholds import Threshold
from rules.verdicts.rule import Rule, Severity


def _faults(name: str, stage: int, stem: str, about: str, title: str, meaning: str, actions: tuple[str, ...]) -> Rule:
    return Rule(
        name=name,
        stage=stage,
        method=judge_faults,
        minimum_seconds=60.0,
        thresholds={"events": Threshold(1, "events", "none is normal")},
        signal=stem,
        unit="events",
        family=stem,
        about=about,
        title=title,
        meaning=meaning,
        actions=actions,
    )


ROWS: tuple[Rule, ...] = (
    Rule(
        name="PdRatioOff",
        stage=31,
        method=judge_pools,
        window_seconds=1800,
        minimum_seconds=300,
        thresholds={
            "factor": Threshold(1.3, "ratio", "guide 9.1, step 13: more than 30 % away from what was planned"),
            "busy": Threshold(0.4, "ratio", "guide 9.3: below 40 % of its capacity nothing is short"),
            "short_prompt": Threshold(
                500, "tokens", "guide 6.5: below 500 tokens whole replicas are the better choice"
            ),
        },
        signal="prompt_tokens_per_second",
        family="prompt_tokens",
        needs="disaggregation",
        title="Prefill to decode ratio off",
        meaning="The traffic's prompts and outputs want another ratio of prefill to decode replicas than there is: one pool is "
        "short while the other one waits for it.",
        actions=(
            "Move replicas from the waiting pool to the short pool, to the split in the sentence",
            "See first what users feel: late first tokens need prefill, slow tokens need decode",
            "If lengths changed for good, put them into the plan's workload and derive both pools again",
        ),
    ),
    Rule(
        name="ExpertImbalance",
        stage=30,
        method=judge_experts,
        severity=Severity.REPORT,
        thresholds={
            "below": Threshold(
                0.33, "ratio", "guide 5.4: at 3x the average traffic the group runs at one third of its throughput"
            ),
            "minimum_running": Threshold(
                32,
                "requests",
                "with 8 experts a token on 64 GPUs that is 4 tokens each; of fewer, chance alone is near one third",
            ),
        },
        signal="expert_balance_ratio",
        about="Expert balance",
        title="Expert load imbalance",
        meaning="Tokens crowd on the experts of a few GPUs. All GPUs of the group wait for the busiest at every layer. The "
        "replica yields about this share of what its GPUs could do.",
        actions=(
            "Let the engine move and duplicate hot experts (SGLang --enable-eplb, --ep-num-redundant-experts)",
            "Measure which experts this workload uses before you choose an expert-parallel size, and keep it small",
            "Where the engine has a capacity factor, keep it above 1: overflow costs quality without an error",
        ),
    ),
    _faults(
        "GpuXid",
        10,
        "gpu_fault_events",
        "GPU faults (XID, AFID)",
        "GPU fault reported by driver",
        "The driver reported a fault of a GPU. Some codes end the process only, others mean a GPU that must be reset or "
        "replaced; which code it was stands in the metrics.",
        (
            "Look up the code: sizewatch_gpu_fault_events_by_code_total, and the kernel log of the node",
            "Drain the node for a hardware code (48, 63, 64, 74, 79, 94, 95): a restart does not help",
            "Restart the engine for a process code (13, 31, 43), and look for its cause",
        ),
    ),
    replace(
        _faults(
            "KvTransferFailing",
            31,
            "kv_transfer_failures",
            "Failed KV transfers",
            "KV transfers fail",
            "KV blocks did not arrive from another instance or an offloaded cache: the request fails, or its prompt is "
            "computed again.",
            (
                "Look at the NICs, disks and stores on the way, and at the log of the receiving engine",
                "Route prompts to mixed replicas, or switch the failing cache tier off, until the path is whole again",
            ),
        ),
        severity=Severity.REPORT,
        thresholds={
            "events": Threshold(1, "events", "a count: neither guide nor engines give a share that is too many")
        },
    ),
    Rule(
        name="GpuThrottling",
        stage=30,
        method=judge_band,
        thresholds={
            "above": Threshold(
                0.05,
                "ratio",
                "neither heat nor the board holds a healthy GPU's clocks down; 5 % of the time is no accident",
            )
        },
        signal="gpu_throttled_ratio",
        about="Throttled GPU time",
        title="GPU throttling",
        meaning="The GPUs run slower than the ones that were benchmarked: capacity and latency are no longer the plan's.",
        actions=(
            "Look at the node's cooling, fans, power supplies and neighbours; compare temperatures of its GPUs",
            "Move traffic to other nodes until it is repaired: more load makes it hotter",
        ),
    ),
    _faults(
        "GpuEccErrors",
        10,
        "gpu_ecc_uncorrectable_errors",
        "Uncorrectable GPU memory errors",
        "Uncorrectable GPU memory errors",
        "A GPU's memory gave wrong data that ECC could not mend: the request was lost, and the GPU may be failing.",
        (
            "Drain the node and reset the GPU: rows that failed are remapped at the reset",
            "Replace a GPU whose errors come back, or whose row remapping failed (nvidia-smi -q -d ROW_REMAPPER)",
        ),
    ),
)
