"""Checks of a plan against its GPUs: the format of the weights, and the link between the GPUs of a replica (guide 5.6, 9.5)."""

from __future__ import annotations

import re
from collections.abc import Callable

from rules.plan.gpu_formats import FALLBACKS, UNPACKED, needed, product
from rules.plan.memory import tensor_parallel
from rules.plan.mistakes import Case, Found, Severity

WIDEST_OVER_PCIE, HOPELESS_OVER_PCIE = 2, 8
"""Tensor parallel degrees: the widest that the guide accepts over PCIe (9.1, step 2: NVLink required for TP > 2), and one
whose all-reduce takes 38 % of a step (5.6)."""

NO_LINK = r"\b(no|none|without|non)\b"
SLOW_LINK = rf"{NO_LINK}|\b(pci\w*|pix|pxb|phb|node|sys)\b"
FAST_LINK = r"nv[ -]?link|nv ?switch|\bnvl?\d+\b|xgmi|infinity"
"""Patterns of `gpu.interconnect`, also as `nvidia-smi topo -m` prints it. "PCIe, no NVLink" is slow, "NVLink + PCIe" fast."""


def _unsupported_weights(case: Case) -> Found:
    """Yield a format of the weights that the GPU has no hardware path for (guide 9.5), as QuantizationMismatch finds it."""
    written = case.tier.precision.weights if case.tier.precision else None
    gpu, needs = product(case.tier.gpu.product), needed(written) if written else None
    if gpu is None or not needs or gpu.computes(needs, since := case.limit("QuantizationMismatch", needs)):
        return
    text = f"{written} has no hardware path on {case.tier.gpu.product}: weights run converted, without the planned speed-up"
    if gpu.capability is not None:
        text += f" (compute capability {gpu.capability:.1f}; {needs.upper()} needs {since:g})"
    instead = next((f for f in FALLBACKS[needs] if gpu.computes(f, case.limit("QuantizationMismatch", f))), None)
    text += f"; build {instead.upper()} weights for this GPU" if instead else ""
    severity: Severity = "info" if needs in UNPACKED else "warning"
    yield "precision.weights", severity, f"{text} (guide 9.5)"


def _wide_without_nvlink(case: Case) -> Found:
    """Yield tensor parallelism over more than 2 GPUs whose link is PCIe, or not known (guide 5.6; 9.1, step 2)."""
    degree, link = tensor_parallel(case.tier), (case.tier.gpu.interconnect or "").casefold()
    if degree <= WIDEST_OVER_PCIE or (re.search(FAST_LINK, link) and not re.search(NO_LINK, link)):
        return
    if not re.search(SLOW_LINK, link):
        told = f"{case.tier.gpu.interconnect} is no known link" if link else "is not in the plan"
        text = f"{told}; tensor parallelism over {degree} GPUs requires NVLink (guide 9.1, step 2)"
        yield "gpu.interconnect", "info", f"{text}: write nvlink, xgmi or pcie"
        return
    share = "more than 38" if degree >= HOPELESS_OVER_PCIE else "about 25" if degree >= 4 else "8 to 25"
    text = f"tensor parallelism over {degree} GPUs without NVLink spends {share} % of a step in all-reduce (guide 5.6)"
    instead = "almost never worth it" if degree >= HOPELESS_OVER_PCIE else "benchmark it against 2 first"
    yield "gpu.interconnect", "warning", f"{text}: {instead}; quantise to need fewer GPUs, or use NVLink"


HARDWARE_CHECKS: tuple[Callable[[Case], Found], ...] = (_unsupported_weights, _wide_without_nvlink)
