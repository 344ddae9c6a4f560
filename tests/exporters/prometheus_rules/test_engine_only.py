"""The rule file without an agent: what stands in it, what it says it lacks, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from engine_rules import SELECTOR, plan, written
from paths import TESTS
from promql_parser import parse
from promtool import Case, complaints, differences, firing

from agent.cli import main
from exporters.prometheus_rules.engine_only import EngineRulesOptions, engine_only_text
from exporters.prometheus_rules.engine_queries import EDGES, UnsupportedSeriesError, edge_above, engine_named, series
from exporters.prometheus_rules.engine_rules import ROWS, WHY_NOT
from rules.catalogue.registry import RULES
from rules.engines.registry import ENGINES
from rules.plan.schema import Plan

PAGES = TESTS / "pages"
UP = 'up{tier="t",instance="a:8000"}'


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("engine"))


def test_promtool_finds_nothing_to_say_about_it(rules: Path) -> None:
    assert not complaints(rules)


def test_series_that_are_missing_are_told_instead_of_reading_as_health(tmp_path: Path, rules: Path) -> None:
    absent = firing("EngineMetricsAbsent", tier="t")
    assert not differences(
        tmp_path,
        rules,
        [Case(series={UP: "1x60"}, values=[("9m45s", absent, 0), ("10m", f"({absent}) > bool 0", 1)])],
    )


def test_the_head_lists_every_rule_that_is_not_there_with_its_reason(rules: Path) -> None:
    text = rules.read_text(encoding="utf-8")
    head = text.partition("\ngroups:")[0]
    missing = set(re.findall(r"^#   (\w+?)(?: of t)?: \S", head.partition("cannot tell")[2], flags=re.MULTILINE))
    alerts = set(re.findall(r"- alert: (\w+)", text))
    assert missing | (alerts - {"EngineMetricsAbsent"}) == {rule.name for rule in RULES}
    assert not missing & alerts
    assert set(ROWS) <= alerts


def test_every_expression_parses_and_reads_one_tier_only(rules: Path) -> None:
    for group in yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]:
        for row in group["rules"]:
            assert str(parse(row["expr"]))
            for selector in re.findall(r"\{([^}]*)\}", row["expr"]):
                assert 'tier="t"' in selector


@pytest.mark.parametrize(("engine", "family"), EDGES)
def test_the_edges_of_the_table_are_those_of_the_engines_pages(engine: str, family: str) -> None:
    name = series(engine_named(engine), family, "").name.replace(":", "[:_]")
    seen = 0
    for page in sorted(PAGES.glob(f"{engine}-*.prom")):
        found = re.findall(rf'^{name}_bucket{{.*?le="([^"]+)"', page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        edges = sorted({float(edge) for edge in found} - {float("inf")})
        if edges:
            seen += 1
            if "v1" in engine_named(engine).generation and "0.6" not in page.name:
                assert tuple(edges) == EDGES[engine, family], page.name
    assert seen >= 3


def test_the_edge_is_the_first_that_is_certainly_slow() -> None:
    vllm = engine_named("vllm")
    assert [edge_above(vllm, "ttft_seconds", limit) for limit in (0.5, 0.51, 2.0, 2.5)] == [0.5, 0.75, 2.5, 2.5]
    with pytest.raises(
        UnsupportedSeriesError, match="5000 lies beyond the last bucket edge of vLLM's ttft_seconds, 2560"
    ):
        edge_above(vllm, "ttft_seconds", 5000)
    with pytest.raises(UnsupportedSeriesError, match="the bucket edges of TGI's"):
        edge_above(engine_named("tgi"), "ttft_seconds", 1)


@pytest.mark.parametrize("engine", sorted({engine.name for engine in ENGINES}))
def test_every_engine_gives_a_file_that_promtool_accepts(tmp_path: Path, engine: str) -> None:
    file = written(tmp_path, engine=engine)
    assert not complaints(file)
    assert "- alert: TargetDown" in file.read_text(encoding="utf-8")


def test_two_tiers_that_one_selector_finds_are_refused() -> None:
    two = Plan.model_validate(
        {"schema": 1, "tiers": dict.fromkeys("ab", plan().tiers["t"].model_dump(mode="json", exclude_none=True))}
    )
    with pytest.raises(
        UnsupportedSeriesError, match=r'tiers a and b are both found by model_name="m": give a --selector'
    ):
        engine_only_text(EngineRulesOptions(plan=two, source="p"))
    text = engine_only_text(EngineRulesOptions(plan=two, source="p", selector=SELECTOR))
    assert {'tier="a"', 'tier="b"'} <= set(re.findall(r'tier="\w"', text))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine-only"], "it needs --plan PLAN"),
        (["--plan", "PLAN"], "--plan goes with --engine-only"),
        (["--engine-only", "--plan", "PLAN", "--engine", "sglang"], "no tier of the plan runs that engine"),
        (["--engine-only", "--plan", "PLAN", "--engine", "vlm"], "no engine is called vlm; sizewatch knows dynamo"),
        (["--engine-only", "--plan", "PLAN", "--selector", "tier=t"], "is no list of label matchers"),
        (["--engine-only", "--plan", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_what_cannot_be_written_is_refused_in_words(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    real = str(TESTS / "plans" / "cpu-small.yaml")
    assert main.main(["render", *(real if one == "PLAN" else one for one in arguments)]) == 2
    assert words in capsys.readouterr().err


def test_the_command_prints_the_file_or_writes_it_where_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = str(TESTS / "plans" / "cpu-small.yaml")
    assert main.main(["render", "--engine-only", "--plan", real]) == 0
    printed = capsys.readouterr().out
    out = tmp_path / "new" / "rules.yaml"
    assert main.main(["render", "--engine-only", "--plan", real, "--out", str(out)]) == 0
    assert out.read_text(encoding="utf-8") == printed
    assert not complaints(out)
    assert 'model_name="small-llama"' in printed
    assert "TargetDown: `up` carries labels of the target only" in printed


def test_a_series_without_the_label_is_read_where_the_table_says_so() -> None:
    """A label that is not there is empty to PromQL: what leaves values out takes it in, unless that is left out too."""
    finished = series(engine_named("vllm"), "requests_finished", "")
    assert finished.matchers == ('finished_reason!~"error"',)


def test_every_reason_belongs_to_a_method_of_the_catalogue() -> None:
    assert WHY_NOT.keys() <= {rule.method.__name__ for rule in RULES}
