import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import TESTS

from agent.cli.main import main

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
PAGE = TESTS / "pages" / "steady_after_load.prom"


def written(folder: Path, architecture: dict[str, Any] | None, tiers: int = 1) -> Path:
    tier = {
        "model": "llama",
        "engine": "vllm",
        "gpu": {"product": "NVIDIA H100 80GB HBM3", "per_replica": 1},
        "slo": {"ttft_p99_seconds": 2},
        "workload": {"prompt_tokens": {"p95": 300}},
        "operating_point": {"c_max": 120, "usable_rps": 5},
        **({"architecture": architecture} if architecture else {}),
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump({"schema": 1, "tiers": {f"t{number}": tier for number in range(tiers)}}))
    return path


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    code = main(["plan", *arguments])
    return code, [line for line in capsys.readouterr().out.splitlines() if "architecture" in line]


def test_the_model_s_config_is_read_beside_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    plan = written(tmp_path, {"config": "config.json"})
    code, (told, *_) = lines(capsys, "check", str(plan))
    assert code == 1
    assert told.startswith("mistake: tiers.t0.architecture: weights and adapters take 141.1 GB")
    assert main(["plan", "show", str(plan)]) == 0
    shown = capsys.readouterr().out
    assert "  weights      141.1 GB of 85.9 GB\n  KV a token   327,680 bytes\n" in shown


def test_keys_of_the_plan_win_and_a_difference_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    plan = written(tmp_path, {"config": "config.json", "kv_heads": 4, "weight_bytes": 10**9})
    _, told = lines(capsys, "check", str(plan))
    assert "warning: tiers.t0.architecture.kv_heads: is 4 here and 8 in config.json; the plan's is used" in told
    assert main(["plan", "show", str(plan)]) == 0
    assert "  weights      1 GB of 85.9 GB\n  KV a token   163,840 bytes\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"), [(None, "there is no such file"), ("{}", "is no config.json of a model"), ("{", "is not JSON")]
)
def test_an_unusable_config_fails_the_check_and_no_daemon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, words: str
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    plan = written(tmp_path, {"config": "config.json"})
    code, (told, *_) = lines(capsys, "check", str(plan))
    assert code == 1
    assert told.startswith("mistake: tiers.t0.architecture.config: ")
    assert words in told


def test_the_page_of_a_running_engine_is_checked_against_the_planned_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 1,024 blocks of 32 tokens; 120 requests with prompts of 300 tokens need 36,000.
    plan = written(tmp_path, None)
    code, told = lines(capsys, "check", str(plan), "--page", str(PAGE))
    assert code == 0
    assert told == [
        (
            "warning: tiers.t0.architecture.kv_tokens: the KV cache holds 32,768 tokens; 120 requests at once with the P95 "
            "prompt of 300 tokens need 36,000: beyond that requests are evicted or wait (guide 2.2). Lower C_max, use an FP8 "
            "KV cache, or more GPUs"
        )
    ]


def test_blocks_of_a_hybrid_model_are_no_tokens_to_check_against(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = written(tmp_path, {"attention": "hybrid"})
    untold = tmp_path / "page.prom"
    untold.write_text(re.sub('kv_cache_size_tokens="[0-9]+",', "", PAGE.read_text()))
    code, told = lines(capsys, "check", str(plan), "--page", str(untold))
    assert code == 0
    assert told[0].startswith("warning: tiers.t0.architecture.kv_tokens: is not known: the page tells blocks")
    assert not any("32,768" in line for line in told)
    _, told = lines(capsys, "check", str(plan), "--page", str(PAGE))
    assert any("holds 32,768 tokens" in line for line in told)


def test_a_page_that_contradicts_itself_or_is_of_another_model_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, page, hits = written(tmp_path, None), tmp_path / "page.prom", "vllm:prefix_cache_hits_total{"
    main(["plan", "check", str(plan), "--page", str(PAGE)])
    model = "warning: tiers.t0.model: is llama, the page is of small-llama: its KV cache is another model's\n"
    assert model in capsys.readouterr().out
    text = PAGE.read_text().replace("small-llama", "llama")
    page.write_text(text)
    assert main(["plan", "check", str(plan), "--page", str(page)]) == 0
    assert "t0.model" not in capsys.readouterr().out
    page.write_text(re.sub(f"^({hits}.*) .*", r"\1 9e9", text, flags=re.MULTILINE))
    assert main(["plan", "check", str(plan), "--page", str(page)]) == 1
    told = capsys.readouterr().out
    assert "warning: page: prefix_hit_tokens: tokens found in the prefix cache, 9,000,000,000, of 40,340" in told


def test_a_page_without_kv_tokens_or_of_an_unnamed_tier_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = TESTS / "pages" / "llamacpp_startup.prom"
    assert main(["plan", "check", str(written(tmp_path, None)), "--page", str(page)]) == 2
    assert "tells no number of KV tokens (llamacpp)" in capsys.readouterr().err
    assert main(["plan", "check", str(written(tmp_path, None, tiers=2)), "--page", str(PAGE)]) == 2
    assert "say whose page it is with --tier" in capsys.readouterr().err
