from typing import Any

import pytest
import yaml
from paths import TESTS

from exporters.documents.plan_show import seconds_text, show
from rules.plan.schema import parse_plan

PLANS = TESTS / "plans"
NAMES = {"cpu-small": "cpu-small", "cpu-small-open": "cpu-small", "guide-h100": "h100-llama70b-fp8"}


def shown(name: str) -> str:
    return show(parse_plan(yaml.safe_load((PLANS / f"{name}.yaml").read_text(encoding="utf-8"))), NAMES[name])


def shown_with(**parts: Any) -> str:
    tier = {
        "model": "m",
        "engine": "vllm",
        "gpu": {"product": "A", "per_replica": 2},
        "slo": {"ttft_p99_seconds": 2},
        **parts,
    }
    return show(parse_plan({"schema": 1, "tiers": {"t": tier}}), "t")


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_fits_the_terminal(name: str) -> None:
    assert max(len(line) for line in shown(name).splitlines()) <= 78


def test_the_guides_arithmetic_is_shown_step_by_step() -> None:
    text = shown("guide-h100")
    for line in (
        "  usable       12 completed requests per second; beyond it TTFT P99 exceeds",
        "  measured at  1300 prompt tokens and 230 output tokens a request on average;",
        "               61% of prompts in the prefix cache",
        "  C_max        48 requests in the system",
        "  C_max / SLO  48 / 2 s = 24 rps, 2 x usable (guide 8.3: up to 2)",
        "  peak         120 rps / 12 usable = 10 full replicas",
        "  Step 11      13 replicas, 52 GPUs (1.3 x the peak, at most 90% used, one may",
        "  planned      13 replicas, 52 GPUs: 156 rps, 1.3 x the peak; 2 always warm",
        # 13 replicas x 2760 tokens/s x 3600 s x 0.6 = 77.5008 million tokens for 130 USD.
        "  cost         52 GPUs x 2.5 = 130 USD an hour; 1.68 USD a million output",
        "Findings: none",
    ):
        assert line in text.splitlines()


def test_every_measured_point_is_a_row() -> None:
    lines = shown("guide-h100").splitlines()
    head = lines.index("   rps  TTFT P99  TPOT P99")
    assert lines[head - 1] == "Measured curve of one replica"
    assert [line.split()[0] for line in lines[head + 1 : head + 8]] == ["1.6", "3", "5.6", "10", "14", "16.8", "18"]
    assert lines[head + 1] == "   1.6    220 ms     16 ms"
    assert lines[head + 8].startswith("  benchmark    7 points, open loop")


def test_a_latency_that_no_point_has_is_no_column() -> None:
    points = [{"completed_rps": 1.0, "tpot_p99_seconds": 0.02}, {"completed_rps": 2.0}]
    lines = shown_with(curve={"points": points}).splitlines()
    head = lines.index("Measured curve of one replica")
    assert lines[head + 1 : head + 4] == ["  rps  TPOT P99", "    1     20 ms", "    2"]


def test_a_lower_bound_is_called_one() -> None:
    text = shown("cpu-small-open")
    assert "at least 7.886 completed requests per second; the highest load" in text
    assert "at least 5.055 requests in the system (Little's law: rps x mean latency)" in " ".join(text.split())


def test_a_point_without_concurrency_is_not_said_to_lack_those_of_the_curve() -> None:
    tiers = yaml.safe_load((PLANS / "guide-h100.yaml").read_text(encoding="utf-8"))["tiers"]
    (tier,) = tiers.values()
    tier["operating_point"] = {"usable_rps": 9.0, "source": "production"}
    text = show(parse_plan({"schema": 1, "tiers": tiers}), NAMES["guide-h100"])
    assert "C_max        not known: the operating point names none" in text
    assert "no concurrencies are given" not in text


def test_findings_are_listed_with_their_places() -> None:
    lines = shown("cpu-small").splitlines()
    assert "  ! curve.points: 6 of 6 points had fewer than 300 requests (16 to 192):" in lines
    assert any(line.startswith("  · curve: C_max / SLO, 30.92 / 2 s = 15.46 rps, is 2.11 times") for line in lines)


def test_a_plan_without_a_curve_is_shown_without_one() -> None:
    text = shown_with(fleet={"instances": 1})
    assert "Measured curve" not in text
    assert "  not known    there is no curve that keeps the SLO, and the plan gives none" in text
    assert "  planned      1 replica, 2 GPUs" in text.splitlines()


def test_a_given_operating_point_is_used_and_named_as_given() -> None:
    text = shown_with(operating_point={"usable_rps": 3, "c_max": 9}, workload={"requests_per_second": {"peak": 7}})
    assert "  usable       3 completed requests per second; as the plan gives it" in text
    assert "  peak         7 rps / 3 usable = 2.33 full replicas" in text
    assert "  C_max / SLO  9 / 2 s = 4.5 rps, 1.5 x usable (guide 8.3: up to 2)" in text
    assert "  measured at  lengths that the plan does not tell" in text


@pytest.mark.parametrize(
    ("warm", "words"),
    [
        (4, "4 replicas, 8 GPUs (1.2 x the peak, at most 90% used, one may be lost, at least 4 warm;"),
        (1, "3 replicas, 6 GPUs (1.2 x the peak, at most 90% used; 3 for the peak alone)"),
    ],
)
def test_step_11_names_the_minimum_warm_count_that_decides(warm: int, words: str) -> None:
    fleet = {"instances": 4, "safety_factor": 1.2, "minimum_warm": warm}
    workload = {"requests_per_second": {"peak": 7}}
    text = shown_with(operating_point={"usable_rps": 3}, workload=workload, fleet=fleet)
    assert words in " ".join(text.split())


def test_lengths_that_the_plan_only_bounds_are_shown_as_bounds() -> None:
    text = shown_with(
        operating_point={"usable_rps": 3},
        workload={"prompt_tokens": {"p50": 900, "p95": 3800, "p99": 7200}, "generation_tokens": {"p50": 180}},
        guardrails={"max_prompt_tokens": 12000},
    )
    assert "  measured at  629 to 2568 prompt tokens and at least 90 output tokens" in text


def test_a_censored_point_is_a_lower_bound() -> None:
    points = [
        {"completed_rps": 2, "ttft_p99_seconds": 1},
        {"completed_rps": 4, "ttft_p99_seconds": 9, "censored": True},
    ]
    lines = shown_with(curve={"points": points}).splitlines()
    head = next(place for place, line in enumerate(lines) if line.startswith("  rps"))
    assert [line.split() for line in lines[head + 1 : head + 3]] == [["2", "1", "s"], ["4", "at", "least", "9", "s"]]


def test_an_unknown_tier_is_answered_with_the_known_ones() -> None:
    plan = parse_plan(yaml.safe_load((PLANS / "cpu-small.yaml").read_text(encoding="utf-8")))
    with pytest.raises(KeyError, match="the plan has no tier h100; it has cpu-small"):
        show(plan, "h100")


@pytest.mark.parametrize(
    ("seconds", "text"), [(2, "2 s"), (1.234, "1.234 s"), (0.08, "80 ms"), (0.0005, "0.5 ms"), (3600, "3600 s")]
)
def test_a_latency_is_written_as_people_write_it(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
