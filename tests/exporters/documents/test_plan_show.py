from typing import Any

import pytest
import yaml
from making import plan_document
from paths import TESTS

from exporters.documents.plan_show import show
from exporters.render.terminal import WIDTH
from rules.plan.schema import parse_plan

PLANS = TESTS / "plans"
NAMES = {"cpu-small": "cpu-small", "cpu-small-open": "cpu-small", "guide-h100": "h100-llama70b-fp8"}
# 13 replicas x 2760 tokens/s x 3600 s x 0.6 = 77.5008 million tokens for 130 USD.
GUIDE = """\
h100-llama70b-fp8
  plan      version d5c000b57079
  serves    llama-3.3-70b-instruct on vllm, weights in fp8, KV cache in fp8
  on        4 x NVIDIA H100 80GB HBM3 over nvlink a replica; 1 pool: mixed
  promises  TTFT P99 2 s, TPOT P99 80 ms, ITL P99 150 ms

Measured curve of one replica
   rps  TTFT P99  TPOT P99
   1.6    220 ms     16 ms
     3    310 ms     18 ms
   5.6    520 ms     22 ms
    10       1 s     27 ms
    14       4 s     38 ms
  16.8     7.4 s     46 ms
    18      11 s     55 ms
  benchmark  7 points, open loop, 960 to 10,800 requests each; sweep/stage_*.json

Operating point of one replica
  usable       12 completed requests per second; beyond it TTFT P99 exceeds its SLO of 2 s
  measured at  1,300 prompt tokens and 230 output tokens a request on average; 61% of prompts in the
               prefix cache
  C_max        48 requests in the system
  KV cache     182,400 tokens: C_max 48 x P95 prompt 3800
  C_max / SLO  48 / 2 s = 24 rps, 2 x usable (guide 8.3: up to 2)

Fleet
  peak     120 rps / 12 usable = 10 full replicas
  Step 11  13 replicas, 52 GPUs (1.3 x the peak, at most 90% used, one may be lost; 12 for the peak
           alone)
  planned  13 replicas, 52 GPUs: 156 rps, 1.3 x the peak; 2 always warm
  cost     130 USD an hour; 1.68 USD a million output tokens at 60% of capacity

Findings: none"""


def shown(name: str, **parts: Any) -> str:
    tiers = yaml.safe_load((PLANS / f"{name}.yaml").read_text(encoding="utf-8"))["tiers"]
    tiers[NAMES[name]] |= parts
    return show(parse_plan({"schema": 1, "tiers": tiers}), NAMES[name])


def shown_with(**parts: Any) -> str:
    return show(parse_plan(plan_document(**{"gpu": {"product": "A", "per_replica": 2}, **parts})), "t")


def test_guide_plan_has_its_golden_page() -> None:
    assert shown("guide-h100") == GUIDE


@pytest.mark.parametrize("name", NAMES)
def test_page_fits_the_terminal(name: str) -> None:
    assert max(map(len, shown(name).splitlines())) <= WIDTH


def test_curve_shows_bounds_of_its_points() -> None:
    points = [{"completed_rps": 1.0, "tpot_p99_seconds": 0.02}, {"completed_rps": 2.0}]
    lines = shown_with(curve={"points": points}).splitlines()
    head = lines.index("Measured curve of one replica")
    assert lines[head + 1 : head + 4] == ["  rps  TTFT P99  TPOT P99", "    1               20 ms", "    2"]
    points = [
        {"completed_rps": 2, "ttft_p99_seconds": 1},
        {"completed_rps": 4, "ttft_p99_seconds": 9, "censored": True},
    ]
    assert "    2           1 s\n    4  at least 9 s\n" in shown_with(curve={"points": points})


GIVEN = {"operating_point": {"usable_rps": 3, "c_max": 9}, "workload": {"requests_per_second": {"peak": 7}}}
BOUNDED = {
    "operating_point": {"usable_rps": 3},
    "workload": {"prompt_tokens": {"p50": 900, "p95": 3800, "p99": 7200}, "generation_tokens": {"p50": 180}},
    "guardrails": {"max_prompt_tokens": 12000},
}


def fleet(warm: int) -> dict[str, Any]:
    return {
        "operating_point": {"usable_rps": 3},
        "workload": {"requests_per_second": {"peak": 7}},
        "fleet": {"instances": 4, "safety_factor": 1.2, "minimum_warm": warm},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (shown("cpu-small-open"), "at least 7.89 completed requests per second; the highest load"),
        (shown("cpu-small-open"), "at least 5.05 requests in the system (Little's law: rps x mean latency)"),
        (
            shown("guide-h100", operating_point={"usable_rps": 9.0, "source": "production"}),
            "9 completed requests per second; measured by production; curve and SLO give 12; benchmark again",
        ),
        (
            shown("guide-h100", operating_point={"usable_rps": 9.0, "source": "production"}),
            "C_max not known: the operating point names none",
        ),
        (shown("cpu-small"), "! curve.points: 6 of 6 points had fewer than 300 requests (16 to 192):"),
        (shown("cpu-small"), "· curve: C_max / SLO, 30.92 / 2 s = 15.46 rps, is 2.11 times"),
        (shown_with(fleet={"instances": 1}), "not known there is no curve that keeps the SLO, and the plan gives none"),
        (shown_with(fleet={"instances": 1}), "planned 1 replica, 2 GPUs"),
        (shown_with(**GIVEN), "usable 3 completed requests per second; as the plan gives it"),
        (shown_with(**GIVEN), "peak 7 rps / 3 usable = 2.33 full replicas"),
        (shown_with(**GIVEN), "C_max / SLO 9 / 2 s = 4.5 rps, 1.5 x usable (guide 8.3: up to 2)"),
        (shown_with(**GIVEN), "measured at lengths that the plan does not tell"),
        (shown_with(**BOUNDED), "measured at 629 to 2,568 prompt tokens and at least 90 output tokens"),
        (
            shown_with(**fleet(warm=4)),
            "4 replicas, 8 GPUs (1.2 x the peak, at most 90% used, one may be lost, at least 4 warm;",
        ),
        (
            shown_with(**fleet(warm=1)),
            "3 replicas, 6 GPUs (1.2 x the peak, at most 90% used; 3 for the peak alone)",
        ),
    ],
)
def test_page_explains_its_numbers(text: str, words: str) -> None:
    assert words in " ".join(text.split())


def test_plan_without_curve_has_no_table() -> None:
    assert "Measured curve" not in shown_with(fleet={"instances": 1})
