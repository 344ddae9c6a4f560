import math
import re
from typing import Any

import pytest
from paths import SHARED

from agent.scrape.scrapers import PageReader
from rules.catalogue.registry import CATALOGUE
from rules.plan import memory
from rules.plan.checks import PlanWarning, check_plan
from rules.plan.memory import MemoryFloor, engine_kv_tokens, memory_floor, read_model_config
from rules.plan.mistakes import case_of
from rules.plan.schema import Architecture, InvalidPlanError, Plan, parse_plan, plan_version

LLAMA_70B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
# The engine that made the recordings: `vllm serve` 0.32.0 on CPU with 1 GiB of KV cache, blocks of 32, no override.
SMALL_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "head_dim": 64,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "vocab_size": 2048,
}
SMALL_LLAMA_LABELS = {"kv_cache_size_tokens": "87360", "num_gpu_blocks": "2730", "block_size": "32"}


def plan_of(architecture: dict[str, Any] | None = None, **parts: Any) -> Plan:
    tier = {
        "model": "llama-3-70b",
        "engine": "vllm",
        "precision": {"weights": "fp16", "kv": "fp16"},
        "gpu": {"product": "NVIDIA H100 80GB HBM3", "per_replica": 4, "interconnect": "nvlink"},
        "slo": {"ttft_p99_seconds": 2},
        "workload": {"prompt_tokens": {"p95": 8000}},
        "operating_point": {"c_max": 50, "usable_rps": 20},
        "architecture": read_model_config(LLAMA_70B) if architecture is None else architecture,
        **parts,
    }
    return parse_plan({"schema": 1, "tiers": {"t": {key: value for key, value in tier.items() if value is not None}}})


def floor_of(plan: Plan) -> MemoryFloor:
    return memory_floor(case_of(plan.tiers["t"]))


def found(plan: Plan) -> list[PlanWarning]:
    return [one for one in check_plan(plan, CATALOGUE) if re.search(r"\.(architecture|gpu)\b", one.path)]


def gpu(count: int, product: str = "NVIDIA H100 80GB HBM3", **more: Any) -> dict[str, Any]:
    return {"product": product, "per_replica": count, **more}


def test_the_guide_s_example_in_fp16_needs_four_gpus_and_five_to_six_with_headroom() -> None:
    floor = floor_of(plan_of())
    assert floor.weights == 2 * 70_553_706_496  # guide: 140 GB
    assert floor.kv_token == 327_680  # 2 x 80 x 8 x 128 x 2; the guide's own formula
    assert floor.needed == 50 * 8000
    assert dict(floor.parts)["activations"] == pytest.approx(28e9, rel=0.01)  # guide: 28 GB
    assert dict(floor.parts)["framework"] == pytest.approx(0.05 * 4 * 80 * 2**30)
    assert floor.floor
    assert floor.gpu_bytes
    assert math.ceil(floor.floor / floor.gpu_bytes) == 4
    (warning,) = found(plan_of())
    assert (warning.path, warning.severity) == ("tiers.t.architecture", "warning")
    assert (
        "needs 317.6 GB (weights 141, activations 28.2, framework 17.2, KV cache 131) and has 343.6, 8% more"
        in warning.text
    )
    assert warning.text.endswith("30% to 50% beyond the floor (2.6): 5 to 6 GPUs a replica")


def test_fp8_halves_weights_and_kv_cache() -> None:
    plan = plan_of(precision={"weights": "fp8", "kv": "fp8"}, gpu=gpu(2))
    assert floor_of(plan).kv_token == 163_840
    assert found(plan)[0].text.endswith(": 3 GPUs a replica")
    assert found(plan_of(precision={"weights": "fp8", "kv": "fp8"})) == []


def test_weights_that_do_not_fit_are_a_mistake() -> None:
    (mistake, _) = found(plan_of(gpu=gpu(1)))
    assert (mistake.path, mistake.severity) == ("tiers.t.architecture", "mistake")
    assert mistake.text.startswith("weights and adapters take 141.1 GB, more than the 85.9 GB of 1 x NVIDIA H100")


def test_a_replica_that_holds_not_one_planned_prompt_is_a_mistake() -> None:
    # 2 x 80 GiB leave 30.7 GB beside 141.1 GB: 93,600 tokens of 327,680 bytes.
    plan = plan_of(gpu=gpu(2), workload={"prompt_tokens": {"p95": 100_000}})
    assert [one.severity for one in found(plan)] == ["mistake", "warning"]
    assert found(plan)[0].text.startswith("after the weights 93,")
    assert found(plan)[0].text.endswith("has 100000")
    assert "mistake" not in [one.severity for one in found(plan_of(gpu=gpu(2)))]


def test_a_kv_budget_below_concurrency_times_length_is_told_in_tokens() -> None:
    (warning,) = found(plan_of(operating_point={"c_max": 80, "usable_rps": 40}))
    assert "the KV cache holds 479,396 tokens; 80 requests at once with the P95 prompt of 8000 tokens need 640,000" in (
        warning.text
    )


def test_the_engine_s_own_number_counts_instead_of_the_rules_of_thumb() -> None:
    shape = read_model_config(LLAMA_70B)
    (told,) = found(plan_of({**shape, "kv_tokens": 400_000}))
    assert (told.path, told.severity) == ("tiers.t.architecture.kv_tokens", "info")
    assert told.text == (
        "the engine's KV cache holds 400,000 tokens; the guide's rules of thumb leave room for 426,968 to 479,396; "
        "the planned load needs 400,000"
    )
    (short,) = found(plan_of({**shape, "kv_tokens": 399_999}))
    assert short.severity == "warning"
    assert "holds 399,999 tokens" in short.text
    (alone,) = found(plan_of({"kv_tokens": 300_000}))
    assert alone.severity == "warning"
    assert "need 400,000" in alone.text


def test_the_formula_gives_the_tokens_of_a_real_engine() -> None:
    shape = read_model_config(SMALL_LLAMA)
    assert (shape["parameters"], shape["attention"]) == (77_089_536, "full")
    floor = floor_of(plan_of(shape, precision=None, gpu=gpu(1, "CPU", memory_gib=1.5)))
    assert floor.kv_token == 12_288
    blocks = int(2**30 / (32 * floor.kv_token))
    assert blocks * 32 == engine_kv_tokens(SMALL_LLAMA_LABELS) == 87_360


@pytest.mark.parametrize(
    ("facts", "tokens"),
    [
        ({"num_gpu_blocks": "27000", "block_size": "16"}, 432_000),  # vLLM before 0.32
        ({"kv_cache_size_tokens": "32768", "num_gpu_blocks": "256", "block_size": "128"}, 32_768),
        ({"kv_tokens": "3072", "num_gpu_blocks": "3072", "block_size": "1"}, 3072),  # SGLang
        ({"num_gpu_blocks": "None", "block_size": "16"}, None),
        ({"num_gpu_blocks": "0", "block_size": "16"}, None),
        ({}, None),
    ],
)
def test_the_engine_s_tokens_are_read_from_its_page(facts: dict[str, str], tokens: int | None) -> None:
    assert engine_kv_tokens(facts) == tokens


def test_blocks_of_a_hybrid_model_are_not_its_tokens() -> None:
    blocks = {"num_gpu_blocks": "30000", "block_size": "16"}
    hybrid, latent = (Architecture.model_validate({"attention": kind}) for kind in ("hybrid", "latent"))
    assert engine_kv_tokens(blocks, hybrid) is None
    assert engine_kv_tokens(blocks | {"kv_cache_size_tokens": "240000"}, hybrid) == 240_000
    assert engine_kv_tokens({"kv_tokens": "240000"}, hybrid) == 240_000
    assert engine_kv_tokens(blocks, latent) == engine_kv_tokens(blocks, Architecture.model_validate({})) == 480_000


@pytest.mark.skipif(not (SHARED / "pages").is_dir(), reason="no shared pages beside the checkout")
def test_pages_of_engines_and_gpus_agree_with_the_tables() -> None:
    pages = {"real/kv_cascade_startup.prom": 8192, "real/sglang_startup.prom": 3072, "real/startup.prom": 32_768}
    for name, tokens in pages.items():
        page = PageReader().read((SHARED / "pages" / name).read_bytes(), 1.8e9)
        assert engine_kv_tokens(page.facts) == tokens, name
    for name, product in (
        ("h200", "NVIDIA H200"),
        ("l40s", "NVIDIA L40S"),
        ("h100-80gb-hbm3", "NVIDIA H100 80GB HBM3"),
    ):
        (path,) = sorted((SHARED / "pages").glob(f"nvidia_gpu_exporter-nvidia-{name}__*__load.prom"))
        told = re.search(r"^nvidia_smi_memory_total_bytes\{.*\} (\S+)$", path.read_text(), re.MULTILINE)
        assert told is not None
        assert memory.gpu_bytes(plan_of(gpu=gpu(1, product)).tiers["t"]) == pytest.approx(float(told[1]), rel=0.005)


@pytest.mark.parametrize(
    ("product", "gib"),
    [
        ("NVIDIA A100-SXM4-40GB", 40),
        ("NVIDIA A100 80GB PCIe MIG 2g.20gb", 20),
        ("Tesla T4", 15_109 / 1024),
        ("NVIDIA GH200 480GB", None),  # 480 GB of CPU memory
        ("NVIDIA H100 NVL", None),
        ("CPU", None),
    ],
)
def test_memory_of_a_gpu_is_read_from_its_name_or_not_known(product: str, gib: float | None) -> None:
    floor = floor_of(plan_of(gpu=gpu(1, product)))
    assert floor.gpu_bytes == (None if gib is None else gib * 2**30)
    if gib is None:
        assert "give gpu.memory_gib" in found(plan_of(gpu=gpu(1, product)))[0].text


@pytest.mark.parametrize(
    ("config", "attention"),
    [
        (LLAMA_70B, "full"),
        ({**LLAMA_70B, "kv_lora_rank": 512}, "latent"),
        ({**LLAMA_70B, "sliding_window": 4096}, "hybrid"),
        ({**LLAMA_70B, "sliding_window": 4096, "use_sliding_window": False}, "full"),
        ({**LLAMA_70B, "sliding_window": 4096, "layer_types": ["full_attention"] * 80}, "full"),
        ({**LLAMA_70B, "layer_types": ["full_attention", "sliding_attention"]}, "hybrid"),
        ({**LLAMA_70B, "layer_types": ["linear_attention"]}, "hybrid"),
        ({**LLAMA_70B, "mamba_d_state": 16}, "hybrid"),
        ({**LLAMA_70B, "multi_query": True}, "hybrid"),
        ({"model_type": "x", "text_config": {**LLAMA_70B, "kv_lora_rank": 512}}, "latent"),
    ],
)
def test_latent_and_hybrid_attention_is_recognised(config: dict[str, Any], attention: str) -> None:
    assert read_model_config(config)["attention"] == attention


@pytest.mark.parametrize(
    ("config", "words"), [("kv_lora_rank", "latent attention (MLA)"), ("mamba_d_state", "hybrid models")]
)
def test_what_cannot_be_computed_is_said_and_not_guessed(config: str, words: str) -> None:
    plan = plan_of(read_model_config({**LLAMA_70B, config: 64}))
    (told,) = found(plan)
    assert told.severity == "info"
    assert f"KV bytes of a token are not computed for {words}" in told.text
    assert floor_of(plan).kv_token is None
    assert floor_of(plan).floor is None


@pytest.mark.parametrize(
    ("change", "parameters"),
    [
        ({}, 70_553_706_496),  # Llama-3 70B
        (
            {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32},
            8_030_261_248,
        ),
        ({"model_type": "mixtral"}, None),
        ({"num_local_experts": 8}, None),
        ({"attention_bias": True}, None),
        ({"vocab_size": None}, None),
    ],
)
def test_parameters_follow_from_the_config_of_dense_models_only(change: dict[str, Any], parameters: int | None) -> None:
    assert read_model_config({**LLAMA_70B, **change}).get("parameters") == parameters


def test_qwen_counts_its_biases_and_norms() -> None:
    # Qwen2.5-7B: 7,615,616,512 parameters; Qwen3-8B: 8,190,735,360 (their model cards: 7.61 B, 8.2 B).
    qwen2 = {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28}
    qwen2 |= {"num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064}
    assert read_model_config(qwen2)["parameters"] == 7_615_616_512
    qwen3 = {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32}
    qwen3 |= {"num_hidden_layers": 36, "num_key_value_heads": 8, "vocab_size": 151936, "head_dim": 128}
    assert read_model_config(qwen3)["parameters"] == 8_190_735_360


def test_an_unknown_number_of_parameters_leaves_the_floor_open_until_it_is_given() -> None:
    shape = read_model_config({**LLAMA_70B, "model_type": "mixtral"})
    assert "the weights are not known: give architecture.parameters" in found(plan_of(shape))[0].text
    assert floor_of(plan_of({**shape, "parameters": 47_000_000_000})).weights == 94e9
    exact = {**shape, "parameters": 47_000_000_000, "weight_bytes": 90_000_000_000}
    assert floor_of(plan_of(exact)).weights == 90e9


def test_ranks_hold_the_model_each_and_more_gpus_than_heads_hold_heads_twice() -> None:
    ranks = plan_of(gpu=gpu(8, tensor_parallel=4))
    assert floor_of(ranks).weights == 2 * 2 * 70_553_706_496
    stages = plan_of(gpu=gpu(8, tensor_parallel=4, pipeline_parallel=2))
    assert floor_of(stages).weights == 2 * 70_553_706_496
    assert floor_of(plan_of(gpu=gpu(16))).kv_token == 2 * 327_680


def test_adapters_count_where_their_size_is_given() -> None:
    lora = {"max_adapters": 8, "adapter_mib": 100}
    assert dict(floor_of(plan_of(lora=lora)).parts)["adapters"] == 800 * 2**20  # guide 2.6: 0.8 GB


def test_heads_that_the_gpus_cannot_share_are_a_mistake() -> None:
    told = [one for one in found(plan_of(gpu=gpu(6, "NVIDIA H200"))) if one.severity == "mistake"]
    assert [one.path for one in told] == ["tiers.t.gpu.per_replica"]
    assert "64 attention heads cannot be shared by 6 GPUs" in told[0].text
    assert not [
        one for one in found(plan_of(gpu=gpu(6, "NVIDIA H200", tensor_parallel=2))) if one.severity == "mistake"
    ]


def test_degrees_that_do_not_divide_the_gpus_are_refused() -> None:
    with pytest.raises(InvalidPlanError) as refused:
        plan_of(gpu=gpu(4, tensor_parallel=3))
    assert refused.value.problems == (
        "tiers.t.gpu.per_replica: must be a multiple of tensor_parallel x pipeline_parallel (3), but is 4",
    )


def test_pools_have_no_budget_of_whole_requests() -> None:
    plan = plan_of(pools=["prefill", "decode"])
    assert floor_of(plan).needed is None
    assert "C_max is that of a whole replica" in found(plan)[0].text


def test_a_plan_without_a_shape_says_nothing_of_memory_and_the_shape_is_no_new_version() -> None:
    without = parse_plan(
        {
            "schema": 1,
            "tiers": {"t": {"model": "m", "engine": "vllm", "gpu": gpu(1), "slo": {"ttft_p99_seconds": 2}}},
        }
    )
    assert found(without) == []
    one, other = plan_of(), plan_of({"kv_tokens": 500_000})
    assert plan_version(one.tiers["t"]) == plan_version(other.tiers["t"])
