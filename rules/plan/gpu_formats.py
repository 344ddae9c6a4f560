"""Number formats that GPUs compute in hardware (guide 4.2, 9.5): a table of products, and the formats as plans write them."""

from __future__ import annotations

import re

from rules.light_dataclass import light_dataclass

_CDNA = frozenset({"fp16", "bf16", "int8"})


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """GPU with NVIDIA's compute capability, or with the formats that it computes."""

    name: str
    capability: float | None = None
    formats: frozenset[str] = frozenset()

    def computes(self, needed: str, since: float) -> bool:
        """Return whether the GPU has a hardware path for a format, which NVIDIA has from capability `since` on."""
        return needed in self.formats if self.capability is None else self.capability >= since


def _nvidia(capability: float, *names: str) -> tuple[tuple[str, Product], ...]:
    return tuple((rf"{name}(?![A-Z0-9])", Product(name=name, capability=capability)) for name in names)


def _amd(formats: frozenset[str], *names: str) -> tuple[tuple[str, Product], ...]:
    return tuple((rf"{name}(?![0-9])", Product(name=name, formats=formats)) for name in names)


PRODUCTS: tuple[tuple[str, Product], ...] = (
    *_nvidia(6.0, "P100"),
    *_nvidia(6.1, "P40", "P4"),
    *_nvidia(7.0, "V100", "V100S", "TITAN V"),
    *_nvidia(7.5, "T4", "T4G", "RTX 2080", "RTX 2080 TI", "RTX 6000", "RTX 8000", "TITAN RTX"),
    *_nvidia(8.0, "A100", "A100X", "A800", "A30", "A30X"),
    *_nvidia(8.6, "A10", "A10G", "A10M", "A16", "A2", "A40", "RTX A4000", "RTX A5000", "RTX A5500", "RTX A6000"),
    *_nvidia(8.6, "RTX 3080", "RTX 3080 TI", "RTX 3090", "RTX 3090 TI"),
    *_nvidia(8.9, "L4", "L20", "L40", "L40S", "L2", "RTX 4000 ADA", "RTX 5000 ADA", "RTX 6000 ADA"),
    *_nvidia(8.9, "RTX 4080", "RTX 4080 SUPER", "RTX 4090", "RTX 4090 D"),
    *_nvidia(9.0, "H100", "H200", "H20", "H800", "GH200"),
    *_nvidia(10.0, "B100", "B200", "GB200"),
    *_nvidia(10.3, "B300", "GB300"),
    *_nvidia(12.0, "RTX PRO 6000 BLACKWELL", "RTX PRO 5000 BLACKWELL", "RTX 5080", "RTX 5090"),
    *_nvidia(12.1, "GB10"),
    *_amd(_CDNA, "MI100", "MI210", "MI250X?"),
    *_amd(_CDNA | {"fp8"}, "MI300[AX]?", "MI308X", "MI325X"),
    *_amd(_CDNA | {"fp8", "fp4"}, "MI350X?", "MI355X?"),
)
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

FALLBACKS = {"fp4": ("fp8", "int8", "fp16"), "fp8": ("int8", "fp16"), "int8": ("fp16",), "bf16": ("fp16",), "fp16": ()}
"""Formats to build weights in where the GPU has no path for a format, best first (guide 9.5: INT8 on A100)."""


def product(name: str) -> Product | None:
    """Return the GPU by its printed name, or None. The longest matching name counts."""
    plain = _MAKERS.sub("", " ".join(re.split(r"[\s_-]+", name.strip().upper())))
    fitting = [(found.end(), one) for pattern, one in PRODUCTS if (found := re.match(pattern, plain))]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def needed(written: str) -> str | None:
    """Return the format that the hardware must compute: "" for none, None if the spelling is not known."""
    return next((needs for pattern, needs in FORMATS if re.search(pattern, written.lower())), None)
