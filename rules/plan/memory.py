"""KV cache of one replica: its tokens by the engine's page, against the planned requests at once (guide 2.2; 9.1, step 4)."""

from __future__ import annotations

from collections.abc import Mapping

from rules.plan.curve import operating_point
from rules.plan.schema import Architecture, TierPlan


def engine_kv_tokens(facts: Mapping[str, str], architecture: Architecture | None = None) -> int | None:
    """Return the tokens that an engine's KV cache holds by its page, None where the page does not tell.

    vLLM since 0.32 and SGLang print the tokens, others blocks x block size (METRICS: `cache_config_info`). A hybrid
    model's groups of layers each take blocks for a token, so these say nothing (vLLM 51163).
    """
    for name in ("kv_cache_size_tokens", "kv_tokens"):
        if (tokens := read_count(facts.get(name, ""))) is not None:
            return tokens
    if architecture is not None and architecture.attention == "hybrid":
        return None
    blocks = read_count(facts.get("num_gpu_blocks", "") or facts.get("num_pages", ""))
    size = read_count(facts.get("block_size", "") or facts.get("page_size", ""))
    return blocks * size if blocks and size else None


def read_count(text: str) -> int | None:
    """Return a whole number above 0 from a label, else None."""
    return (int(text) or None) if text.isascii() and text.isdecimal() else None


def planned_kv_tokens(tier: TierPlan) -> tuple[float, str] | None:
    """Return the tokens of the planned requests at once, C_max x P95 prompt, and the product in words.

    None where the plan lacks one of them, and for pools: C_max is that of a whole replica.
    """
    point, prompts = operating_point(tier), tier.workload.prompt_tokens if tier.workload else None
    if tier.pools != ("mixed",) or point is None or not point.c_max or prompts is None or not prompts.p95:
        return None
    return point.c_max * prompts.p95, f"C_max {point.c_max:.4g} x P95 prompt {prompts.p95:.6g}"


def kv_shortfall(tokens: float, tier: TierPlan) -> str:
    """Return in words how far KV tokens fall short of the planned requests at once, or ""."""
    planned = planned_kv_tokens(tier)
    if planned is None or tokens >= planned[0]:
        return ""
    return (
        f"the KV cache holds {tokens:,.0f} tokens; the planned load, {planned[1]}, needs {planned[0]:,.0f}: "
        "beyond that requests are evicted or wait (guide 2.2)"
    )
