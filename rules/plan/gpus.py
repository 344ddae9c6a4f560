"""GPUs of a plan: number formats of the hardware (guide 4.2, 9.5), peaks, and the KV cache by the engine's page against
the planned requests at once (guide 2.2; 9.1, step 4)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rules.plan.curve import operating_point
from rules.plan.schema import Architecture, TierPlan

_CDNA = frozenset({"fp16", "bf16", "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """GPU with NVIDIA's compute capability, or with the formats that it computes.

    `flops` are dense BF16 operations a second, `bandwidth` memory bytes a second (guide "GPU Categories for Inference").
    """

    capability: float | None = None
    formats: frozenset[str] = frozenset()
    flops: float | None = None
    bandwidth: float | None = None

    def computes(self, format: str, since: float) -> bool:
        """Return whether the GPU has a hardware path for a format, which NVIDIA has from capability `since` on."""
        return format in self.formats if self.capability is None else self.capability >= since


BY_CAPABILITY: dict[float, tuple[str, ...]] = {
    6.0: ("P100",),
    6.1: ("P40", "P4"),
    7.0: ("V100", "V100S", "TITAN V"),
    7.5: ("T4", "T4G", "RTX 2080", "RTX 2080 TI", "RTX 6000", "RTX 8000", "TITAN RTX"),
    8.0: ("A100", "A100X", "A800", "A30", "A30X"),
    8.6: (
        *("A10", "A10G", "A10M", "A16", "A2", "A40", "RTX A4000", "RTX A5000", "RTX A5500", "RTX A6000"),
        *("RTX 3080", "RTX 3080 TI", "RTX 3090", "RTX 3090 TI"),
    ),
    8.9: (
        *("L4", "L20", "L40", "L40S", "L2", "RTX 4000 ADA", "RTX 5000 ADA", "RTX 6000 ADA"),
        *("RTX 4080", "RTX 4080 SUPER", "RTX 4090", "RTX 4090 D"),
    ),
    9.0: ("H100", "H200 NVL", "H20", "H800", "GH200"),
    10.0: ("B100", "GB200"),
    10.3: ("B300", "GB300"),
    12.0: ("RTX PRO 6000 BLACKWELL", "RTX PRO 5000 BLACKWELL", "RTX 5080", "RTX 5090"),
    12.1: ("GB10",),
}

PRODUCTS: dict[str, Product] = {
    **{rf"{name}(?![A-Z0-9])": Product(capability=since) for since, names in BY_CAPABILITY.items() for name in names},
    r"A100 SXM4 80GB(?![A-Z0-9])": Product(capability=8.0, flops=312e12, bandwidth=2.04e12),
    r"H100 80GB HBM3(?![A-Z0-9])": Product(capability=9.0, flops=990e12, bandwidth=3.35e12),
    r"H200(?![A-Z0-9])": Product(capability=9.0, flops=990e12, bandwidth=4.80e12),
    r"B200(?![A-Z0-9])": Product(capability=10.0, flops=2250e12, bandwidth=8.00e12),
    r"MI(100|210|250X?)(?![0-9])": Product(formats=_CDNA),
    r"MI(300[AX]?|308X|325X)(?![0-9])": Product(formats=_CDNA | {"fp8"}),
    r"MI35[05]X?(?![0-9])": Product(formats=_CDNA | {"fp8", "fp4"}),
}
"""Products by a pattern of the name that NVML and exporters print, without the maker's words.

Sources: NVIDIA's table of CUDA GPUs; instruction set manuals of CDNA 1-4 and RDNA.
"""

_MAKERS = re.compile(r"^(NVIDIA|AMD|TESLA|GEFORCE|QUADRO|INSTINCT|GRACE|HOPPER|\s)+\s*")

FORMATS: tuple[tuple[str, str], ...] = (
    (r"awq|gptq|gguf|w[48]a16|int4|int3|bitsandbytes|bnb|nf4|q[2-8]_", ""),
    (r"fp4|nvfp4|mxfp4", "fp4"),
    (r"fp8|f8|e4m3|e5m2", "fp8"),
    (r"int8", "int8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half", "fp16"),
    (r"fp32|float32|^auto$", ""),
)
"""Patterns of formats in plans, and the needed format. The first match counts. Weight-only formats are unpacked to 16 bits
before multiplication (guide 4.2), so they need no path of their own."""

UNPACKED = frozenset({"fp4"})
"""Formats whose weights are often unpacked on purpose, to save memory (MXFP4 models on Hopper): likely at most."""


def find_product(name: str) -> Product | None:
    """Return the GPU by its printed name, or None. The longest matching name counts."""
    plain = _MAKERS.sub("", " ".join(re.split(r"[\s_-]+", name.strip().upper())))
    fitting = [(match.end(), gpu) for pattern, gpu in PRODUCTS.items() if (match := re.match(pattern, plain))]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def needed_format(written: str) -> str | None:
    """Return the format that the hardware must compute: "" for none, None if the spelling is not known."""
    return next((format for pattern, format in FORMATS if re.search(pattern, written.lower())), None)


def gpu_peaks(tier: TierPlan) -> tuple[float | None, float | None]:
    """Return the peak operations and memory bytes per second of a GPU, times the data-parallel copies of a replica.

    None for an unknown product, and for operations unless the weights have 16 bits. Engines add up data-parallel ranks.
    """
    gpu, copies = find_product(tier.gpu.product), tier.gpu.model_copies
    if gpu is None or gpu.flops is None or gpu.bandwidth is None:
        return None, None
    weights = tier.value_at("precision.weights") or ""
    is_16_bit = re.fullmatch(r"(bf|fp|bfloat|float)16", weights, re.IGNORECASE)
    return gpu.flops * copies if is_16_bit else None, gpu.bandwidth * copies


def engine_kv_tokens(facts: Mapping[str, str], architecture: Architecture | None = None) -> int | None:
    """Return the tokens that an engine's KV cache holds by its page, None where the page does not tell.

    vLLM since 0.32 and SGLang print the tokens of a data-parallel rank, others blocks x block size. A hybrid
    model's groups of layers each take blocks for a token, so these say nothing (vLLM 51163).
    """
    ranks = read_count(facts.get("data_parallel_ranks", "")) or 1
    for name in ("kv_cache_size_tokens", "kv_tokens"):
        if (tokens := read_count(facts.get(name, ""))) is not None:
            return tokens * ranks
    if architecture is not None and architecture.attention == "hybrid":
        return None
    blocks = read_count(facts.get("num_gpu_blocks", "") or facts.get("num_pages", ""))
    size = read_count(facts.get("block_size", "") or facts.get("page_size", ""))
    return blocks * size * ranks if blocks and size else None


def read_count(text: str) -> int | None:
    """Return a whole number above 0 from a label, else None."""
    return (int(text) or None) if text.isascii() and text.isdecimal() else None


def planned_kv_tokens(tier: TierPlan) -> tuple[float, str] | None:
    """Return the tokens of the planned requests at once, C_max x P95 prompt, and the product in words.

    None where the plan lacks one of them, and for pools: C_max is that of a whole replica.
    """
    point, prompt = operating_point(tier), tier.value_at("workload.prompt_tokens.p95")
    if tier.pools != ("mixed",) or point is None or not point.c_max or prompt is None:
        return None
    return point.c_max * prompt, f"C_max {point.c_max:.4g} x P95 prompt {prompt:.6g}"


def kv_shortfall(tokens: float, tier: TierPlan) -> str:
    """Return in words how far KV tokens fall short of the planned requests at once, or ""."""
    planned = planned_kv_tokens(tier)
    if planned is None or tokens >= planned[0]:
        return ""
    text = f"the KV cache holds {tokens:,.0f} tokens; the planned load, {planned[1]}, needs {planned[0]:,.0f}"
    return f"{text}: beyond that requests are evicted or wait (guide 2.2)"
