import json
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def written(folder: Path, architecture: dict[str, Any] | None) -> Path:
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
    path.write_text(yaml.safe_dump({"schema": 1, "tiers": {"t0": tier}}))
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
