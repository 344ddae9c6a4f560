"""GPUs of a plan: the number formats that they compute in hardware (guide 4.2, 9.5), and their peaks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rules.plan.schema import TierPlan

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
    weights = (tier.precision.weights if tier.precision else None) or ""
    is_16_bit = re.fullmatch(r"(bf|fp|bfloat|float)16", weights, re.IGNORECASE)
    return gpu.flops * copies if is_16_bit else None, gpu.bandwidth * copies
