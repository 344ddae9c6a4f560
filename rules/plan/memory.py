"""Memory floor and KV budget of one replica (guide 2.6, steps 4 to 6), from the model's shape and the planned load.

Rules of thumb are the guide's: activations 20 % of the weights (2.3), framework 5 to 10 % of the GPU (2.4), 30 to 50 %
more than the floor (2.6). Where the plan has the engine's own number of KV tokens, that number counts instead.
Models whose layers do not all keep keys and values of every token are not computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rules.light_dataclass import light_dataclass
from rules.plan.mistakes import Case, Found
from rules.plan.schema import Architecture, TierPlan
from rules.sizing import kv_bytes_per_token, llama_parameters

ACTIVATIONS = 0.20
"""Activations by weights under FlashAttention (guide 2.3)."""

FRAMEWORK = (0.05, 0.10)
"""Share of the GPU's memory that the framework takes (guide 2.4). The lower one counts where a finding follows."""

HEADROOM = (0.30, 0.50)
"""Memory beyond the floor that the guide asks for (2.6)."""

MIB, GIB = 2.0**20, 2.0**30

WEIGHT_BYTES: tuple[tuple[str, float], ...] = (
    (r"fp32|float32", 4.0),
    (r"fp8|f8|e4m3|e5m2|int8|w8a8|w8a16", 1.0),
    (r"fp4|awq|gptq|w4a16|int4|nf4", 0.5),
    (r"bf16|bfloat16|fp16|float16|half", 2.0),
)
"""Patterns of formats, and bytes of a value in them (guide 2.1). Scales of 4-bit formats and layers that stay in 16 bits
come on top, so these are lower bounds. `architecture.weight_bytes` is exact."""

GPU_BYTES: tuple[tuple[str, float], ...] = (
    (r"\bH200\b", 150_754_820_096.0),
    (r"\bL40S\b", 48_305_799_168.0),
    (r"\bT4\b", 15_109 * MIB),
)
"""Memory of GPUs whose name does not tell it, in bytes as NVML and DCGM print the total. Only measured products."""

_SIZE = re.compile(r"(\d+)\s?GB\b", re.IGNORECASE)
_WITH_CPU = re.compile(r"\bG[HB]\d{2,3}\b")
"""Superchips: the size in the name of a GH200 is that of its CPU's memory."""

LLAMA_EXTRA: Mapping[str, Callable[[int, int, int], int]] = {
    "llama": lambda heads, kv, size: 0,
    "mistral": lambda heads, kv, size: 0,
    "qwen2": lambda heads, kv, size: (heads + 2 * kv) * size,
    "qwen3": lambda heads, kv, size: 2 * size,
}
"""`model_type` of dense models whose parameters follow from config.json, and what a layer has beside Llama's: biases of
query, key and value, or norms of query and key (transformers, modeling_*.py). Others need `parameters`."""

LATENT = ("kv_lora_rank",)
"""Keys of models with latent attention: a layer keeps one compressed vector, and every GPU keeps all of it."""

HYBRID = (
    *("mamba_d_state", "ssm_state_size", "ssm_cfg", "attn_layer_period", "layers_block_type", "block_types"),
    *("linear_num_key_heads", "hybrid_override_pattern", "linear_attn_config"),
)
"""Keys of models some of whose layers keep a state of fixed size instead of keys and values."""


def read_model_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of an `architecture` that a model's config.json (transformers) gives. Unknown ones are left out.

    Models of text and images have the language model in `text_config`.
    """
    text = config.get("text_config")
    own = {**config, **text} if isinstance(text, Mapping) else config
    heads = _count(own, "num_attention_heads", "n_head")
    hidden = _count(own, "hidden_size", "n_embd")
    found: dict[str, Any] = {
        "layers": _count(own, "num_hidden_layers", "n_layer"),
        "attention_heads": heads,
        "kv_heads": _count(own, "num_key_value_heads") or heads,
        "head_size": _count(own, "head_dim") or (hidden // heads if hidden and heads and hidden % heads == 0 else None),
        "dtype": next((value for key in ("dtype", "torch_dtype") if isinstance(value := own.get(key), str)), None),
        "attention": _attention(own),
        "parameters": _parameters(own),
    }
    return {name: value for name, value in found.items() if value is not None}


def _attention(own: Mapping[str, Any]) -> str:
    if any(own.get(key) for key in LATENT):
        return "latent"
    kinds = own.get("layer_types")
    mixed = isinstance(kinds, list) and any(kind != "full_attention" for kind in kinds)
    windowed = bool(own.get("sliding_window")) and own.get("use_sliding_window", True) is not False
    # A list of kinds is the last word: a window that no layer uses is none.
    windowed = windowed and not (isinstance(kinds, list) and not mixed)
    # Falcon and its like share keys and values in ways that config.json names differently.
    shared = any(own.get(key) for key in ("multi_query", "new_decoder_architecture", "multi_query_attention"))
    return "hybrid" if mixed or windowed or shared or any(own.get(key) for key in HYBRID) else "full"


def _parameters(own: Mapping[str, Any]) -> int | None:
    """Return the parameters of a dense model of Llama's shape, None for another."""
    extra = LLAMA_EXTRA.get(str(own.get("model_type")))
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")
    vocab, hidden, layers, ffn, heads = (_count(own, name) for name in names)
    if extra is None or not (vocab and hidden and layers and ffn and heads):
        return None
    if any(own.get(key) for key in ("attention_bias", "mlp_bias", "num_experts", "num_local_experts")):
        return None
    kv, size = _count(own, "num_key_value_heads") or heads, _count(own, "head_dim") or hidden // heads
    plain = llama_parameters(
        vocab, hidden, layers, ffn, heads * size, kv * size, tied=bool(own.get("tie_word_embeddings"))
    )
    return plain + layers * extra(heads, kv, size)


def _count(own: Mapping[str, Any], *names: str) -> int | None:
    values = (own.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), None)


BLOCKS_OF_HYBRID = (
    "the page tells blocks and no kv_cache_size_tokens: a hybrid model's layers share the blocks, so blocks x block size "
    "is not the tokens"
)


def engine_kv_tokens(facts: Mapping[str, str], architecture: Architecture | None = None) -> int | None:
    """Return the tokens that an engine's KV cache holds by its page, None where the page does not tell.

    vLLM since 0.32 and SGLang print the tokens, others blocks x block size (METRICS: `cache_config_info`). A hybrid
    model's groups of layers each take blocks for a token, so these say nothing (vLLM 51163).
    """
    for name in ("kv_cache_size_tokens", "kv_tokens"):
        if (tokens := whole(facts.get(name, ""))) is not None:
            return tokens
    if architecture is not None and architecture.attention == "hybrid":
        return None
    blocks = whole(facts.get("num_gpu_blocks", "") or facts.get("num_pages", ""))
    size = whole(facts.get("block_size", "") or facts.get("page_size", ""))
    return blocks * size if blocks and size else None


def whole(text: str) -> int | None:
    """Return a whole number above 0 from a label, else None."""
    return (int(text) or None) if text.isascii() and text.isdecimal() else None


@light_dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFloor:
    """Memory of one replica in bytes, and tokens of KV cache. None: not known, and `gaps` say why.

    `fits` are the tokens that the guide's rules of thumb leave room for, with the higher and the lower share for the
    framework. `needed` is the planned requests at once x the planned P95 prompt. `engine` is the engine's own number.
    """

    gpu_bytes: float | None
    memory: float | None
    weights: float | None
    adapters: float
    kv_token: float | None
    fits: tuple[float, float] | None
    concurrency: float | None
    length: float | None
    engine: int | None
    load_gap: str
    gaps: tuple[str, ...]

    @property
    def needed(self) -> float | None:
        return self.concurrency * self.length if self.concurrency and self.length else None

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """Return what the floor consists of, in bytes (guide 2.6); nothing where a part is not known."""
        if self.weights is None or self.memory is None or self.kv_token is None or self.needed is None:
            return ()
        return (
            ("weights", self.weights),
            ("activations", self.weights * ACTIVATIONS),
            ("framework", self.memory * FRAMEWORK[0]),
            ("adapters", self.adapters),
            ("KV cache", self.needed * self.kv_token),
        )

    @property
    def floor(self) -> float | None:
        """Return the memory that the planned load needs, bytes."""
        return math.fsum(size for _, size in self.parts) or None

    @property
    def headroom(self) -> float | None:
        """Return the memory beyond the floor, by the floor: 0.3 is the least that the guide asks for."""
        return None if self.floor is None or self.memory is None else self.memory / self.floor - 1


def memory_floor(case: Case) -> MemoryFloor:
    """Return the memory floor of one replica of a tier."""
    tier = case.tier
    shape, gaps = tier.architecture or Architecture.model_validate({}), list[str]()
    gpu = gpu_bytes(tier)
    if gpu is None:
        gaps.append(f"how much memory {tier.gpu.product} has is not known: give gpu.memory_gib")
    memory, copies = gpu * tier.gpu.per_replica if gpu else None, model_copies(tier)
    weights = _weights(tier, shape, copies, gaps)
    kv_token = _kv_token(tier, shape, gaps)
    prompts = tier.workload.prompt_tokens if tier.workload else None
    length, concurrency = prompts.p95 if prompts else None, case.point.c_max if case.point else None
    load_gap = "" if length and concurrency else "C_max or workload.prompt_tokens.p95 is not in the plan"
    if tier.pools != ("mixed",):
        concurrency, load_gap = None, "C_max is that of a whole replica, and pools do a part of each request"
    adapters = (tier.lora.max_adapters * (tier.lora.adapter_mib or 0.0) * MIB * copies) if tier.lora else 0.0
    fits = None
    if memory and weights and kv_token:
        low, high = (memory * (1 - share) - weights * (1 + ACTIVATIONS) - adapters for share in reversed(FRAMEWORK))
        fits = max(0.0, low / kv_token), max(0.0, high / kv_token)
    return MemoryFloor(
        gpu_bytes=gpu,
        memory=memory,
        weights=weights,
        adapters=adapters,
        kv_token=kv_token,
        fits=fits,
        concurrency=concurrency,
        length=length,
        engine=shape.kv_tokens,
        load_gap=load_gap,
        gaps=(*gaps, *filter(None, (load_gap,))),
    )


def gpu_bytes(tier: TierPlan) -> float | None:
    """Return the memory of one GPU in bytes: the plan's, that of its name (80GB are GiB in NVML), or a measured one."""
    if tier.gpu.memory_gib is not None:
        return tier.gpu.memory_gib * GIB
    name = tier.gpu.product.upper()
    told = [] if _WITH_CPU.search(name) else _SIZE.findall(name)
    if told:
        return float(told[-1]) * GIB
    return next((size for pattern, size in GPU_BYTES if re.search(pattern, name)), None)


def tensor_parallel(tier: TierPlan) -> int:
    """Return the GPUs that share each layer: the plan's number, else all of a replica."""
    return tier.gpu.tensor_parallel or tier.gpu.per_replica // (tier.gpu.pipeline_parallel or 1) or 1


def model_copies(tier: TierPlan) -> int:
    """Return how often a replica holds the model: its data-parallel ranks."""
    return max(1, tier.gpu.per_replica // (tensor_parallel(tier) * (tier.gpu.pipeline_parallel or 1)))


def _value_bytes(format: str | None) -> float | None:
    lowered = (format or "").casefold()
    return next((size for pattern, size in WEIGHT_BYTES if re.search(pattern, lowered)), None)


def _weights(tier: TierPlan, shape: Architecture, copies: int, gaps: list[str]) -> float | None:
    if shape.weight_bytes is not None:
        return float(shape.weight_bytes * copies)
    written = (tier.precision.weights if tier.precision else None) or shape.dtype
    size = _value_bytes(written)
    if shape.parameters is None or size is None:
        gaps.append("the weights are not known: give architecture.parameters and precision.weights, or weight_bytes")
        return None
    return shape.parameters * size * copies


def _kv_token(tier: TierPlan, shape: Architecture, gaps: list[str]) -> float | None:
    if shape.attention in ("latent", "hybrid"):
        gaps.append(f"KV bytes of a token are not computed for {KINDS[shape.attention]}")
        return None
    written = tier.precision.kv if tier.precision else None
    size = _value_bytes(shape.dtype if written in (None, "auto") else written)
    if not (shape.layers and shape.kv_heads and shape.head_size and size):
        gaps.append("KV bytes of a token are not known: give layers, kv_heads, head_size and precision.kv")
        return None
    return kv_bytes_per_token(shape.layers, shape.kv_heads, shape.head_size, size, tensor_parallel(tier))


KINDS = {
    "latent": "latent attention (MLA)",
    "hybrid": "hybrid models (windows, states or shared heads in some layers)",
}


def kv_shortfall(tokens: float, floor: MemoryFloor) -> str:
    """Return in words how far KV tokens fall short of the planned requests at once, or ""."""
    if floor.needed is None or tokens >= floor.needed:
        return ""
    return (
        f"the KV cache holds {tokens:,.0f} tokens; {floor.concurrency:.4g} requests at once with the P95 prompt of "
        f"{floor.length:.6g} tokens need {floor.needed:,.0f}: beyond that requests are evicted or wait (guide 2.2)"
    )


def _memory(case: Case) -> Found:
    """Yield what cannot be loaded, what leaves too little room, and what was not computed."""
    if case.tier.architecture is None:
        return
    floor = memory_floor(case)
    yield from _cannot_load(case, floor)
    if floor.engine is not None:
        yield from _by_the_engine(floor, floor.engine)
    elif floor.floor and floor.memory and floor.memory < floor.floor * (1 + HEADROOM[0]):
        yield from _too_little(case, floor, floor.floor, floor.memory)
    if floor.gaps and floor.engine is None:
        yield "architecture", "info", f"the memory floor is not computed: {'; '.join(floor.gaps)}"


def _by_the_engine(floor: MemoryFloor, tokens: int) -> Found:
    """Compare the engine's own number of KV tokens with the planned load, and with what the guide's rules leave."""
    if short := kv_shortfall(tokens, floor):
        yield "architecture.kv_tokens", "warning", f"{short}. Lower C_max, use an FP8 KV cache, or more GPUs"
        return
    text = f"the engine's KV cache holds {tokens:,} tokens"
    if floor.fits is not None:
        text += f"; the guide's rules of thumb leave room for {floor.fits[0]:,.0f} to {floor.fits[1]:,.0f}"
    needs = f"is not known: {floor.load_gap}" if floor.needed is None else f"needs {floor.needed:,.0f}"
    yield "architecture.kv_tokens", "info", f"{text}; the planned load {needs}"


def _cannot_load(case: Case, floor: MemoryFloor) -> Found:
    """Yield weights that leave no room for themselves, or for one planned request: facts, without rules of thumb."""
    if floor.memory is None or floor.weights is None:
        return
    have = f"{floor.memory / 1e9:.4g} GB of {case.tier.gpu.per_replica} x {case.tier.gpu.product}"
    left = floor.memory - floor.weights - floor.adapters
    if left <= 0:
        text = f"weights and adapters take {(floor.weights + floor.adapters) / 1e9:.4g} GB, more than the {have}"
        yield "architecture", "mistake", f"{text}. Quantise (step 5), or give a replica more GPUs"
    elif floor.kv_token and floor.length and left / floor.kv_token < floor.length:
        text = f"after the weights {left / floor.kv_token:,.0f} tokens of KV cache fit into the {have}"
        yield "architecture", "mistake", f"{text}, and a prompt of the planned P95 has {floor.length:.6g}"


def _too_little(case: Case, floor: MemoryFloor, needs: float, has: float) -> Found:
    """Yield a memory floor that the GPUs of a replica do not exceed by the guide's headroom."""
    parts = ", ".join(f"{label} {size / 1e9:.3g}" for label, size in floor.parts if size)
    text = f"a replica needs {needs / 1e9:.4g} GB ({parts}) and has {has / 1e9:.4g}"
    shortfall = f"; {kv_shortfall(floor.fits[1] if floor.fits else 0.0, floor)}"
    text += shortfall if has < needs else f", {has / needs - 1:.0%} more"
    gpus = [math.ceil(needs * (1 + more) * case.tier.gpu.per_replica / has) for more in HEADROOM]
    several = f"{gpus[0]} to {gpus[1]}" if gpus[0] < gpus[1] else f"{gpus[0]}"
    asked = f"the guide asks for {HEADROOM[0]:.0%} to {HEADROOM[1]:.0%} beyond the floor (2.6)"
    yield "architecture", "warning", f"{text}; {asked}: {several} GPUs a replica"


def _undivided_heads(case: Case) -> Found:
    shape, degree = case.tier.architecture, tensor_parallel(case.tier)
    if shape and shape.attention_heads and shape.attention_heads % degree:
        text = f"{shape.attention_heads} attention heads cannot be shared by {degree} GPUs: engines refuse to start"
        yield "gpu.per_replica", "mistake", f"{text}. Choose a divisor, or set gpu.tensor_parallel"


MEMORY_CHECKS: tuple[Callable[[Case], Found], ...] = (_memory, _undivided_heads)


def describe_memory(case: Case) -> Iterator[tuple[str, str]]:
    """Yield label and text of each known part of the memory of one replica, for `sizewatch plan show`."""
    if case.tier.architecture is None:
        return
    floor = memory_floor(case)
    if floor.weights is not None:
        of = f" of {floor.memory / 1e9:.4g} GB" if floor.memory else ""
        yield "weights", f"{floor.weights / 1e9:.4g} GB{of}"
    if floor.kv_token is not None:
        yield "KV a token", f"{floor.kv_token:,.0f} bytes"
    if floor.fits is not None:
        room = f"{floor.fits[0]:,.0f} to {floor.fits[1]:,.0f} tokens"
        yield "fit", f"{room} after activations (20 % of the weights) and framework (10 to 5 %)"
    if floor.engine is not None:
        yield "engine", f"{floor.engine:,} tokens by its own page"
    if floor.needed is not None:
        yield "needed", f"{floor.needed:,.0f} tokens: C_max {floor.concurrency:.4g} x P95 prompt {floor.length:.6g}"
    if floor.floor is not None and floor.headroom is not None:
        yield "floor", f"{floor.floor / 1e9:.4g} GB; {floor.headroom:.0%} headroom (guide 2.6: 30 to 50 %)"
    for gap in floor.gaps:
        yield "not known", gap
