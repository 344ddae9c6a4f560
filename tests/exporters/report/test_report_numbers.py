"""No number of a tier's report has two values: neither of one fact, nor of one number rounded twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from html import unescape
from itertools import permutations
from pathlib import Path

import pytest
from building import build_once
from report_samples import hours, plan, reported
from test_report_looks import count_pages
from test_report_truth import Told, told_of

from exporters.report.formats import report_html, report_markdown

UNITS = r"rps|%|x\b|USD|ms|s\b|tokens/s|tokens|replicas|replica-hours|days|requests|GPUs|J per token"
NUMBER = re.compile(rf"(?<![\w.,/+-])(\d[\d,]*(?:\.\d+)?)(?: to (\d[\d,]*(?:\.\d+)?))? ?({UNITS})")

FACTS = {
    "capacity of a replica": r"(?:A replica keeps the SLO up to|rps at|\d replicas at) ([\d.]+) rps",
    "highest load that kept the SLO": r"production kept the SLO up to ([\d.]+\d)"
    r"|^\| ([\d.]+) rps \|[^\n]*kept \|\n\n",
    "peak": r"(?:; peak|the peak needs \d+ replicas \() ?([\d.]+) rps",
    "cost of a million tokens": r"(?:Cost per million tokens|measured \|(?:[^|]*\|){4}) ([\d.]+) USD"
    r"|([\d.]+) USD a million output tokens",
    "cost of a day": r"it costs ([\d,.]+) USD a day|measured \|(?:[^|]*\|){3} ([\d,.]+) USD",
    "fleet utilisation of the time": r"Fleet utilisation, on average \|[^|]*\| ([\d.]+%)"
    r"|fleet utilisation ([\d.]+%)[^;]* on average"
    r"|measured \|(?:[^|]*\|){5} ([\d.]+%)",
    "KV cache": r"KV cache in use, on average (?:\|[^|]*\| )?([\d.]+%)|KV cache ([\d.]+%) on average",
}
"""Facts that stand in several places of a tier's text: expressions that find their values."""


@pytest.fixture(scope="module", name="told")
def report_on_four_weeks(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return build_once(tmp_path_factory, "report-truth", told_of)


def texts_of(text: str) -> dict[str, str]:
    """Text of each tier."""
    return dict(re.findall(r"\n## (\S+)\n(.*?)(?=\n## |\Z)", text, flags=re.DOTALL))


def values(pattern: str, text: str) -> list[str]:
    return ["".join(match.groups("")) for match in re.finditer(pattern, text, flags=re.MULTILINE)]


def rounded_twice(text: str) -> Iterator[tuple[str, str, str]]:
    """Unit and two numbers of it, of which one is the other rounded."""
    by_unit: dict[str, set[str]] = {}
    for match in NUMBER.finditer(text):
        by_unit.setdefault(match[3], set()).update(one for one in match.group(1, 2) if one)
    for unit, found in by_unit.items():
        for long, short in permutations(sorted(found), 2):
            exact, rough = (Decimal(one.replace(",", "")) for one in (long, short))
            places = len(short.partition(".")[2])
            digits = len(short.replace(",", "").replace(".", "").lstrip("0"))
            more = len(long.partition(".")[2]) > places
            if exact != rough and digits > 1 and more and exact.quantize(Decimal(1).scaleb(-places)) == rough:
                yield unit, long, short


@pytest.mark.slow
@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_has_one_value(told: Told, fact: str) -> None:
    several = {name: values(FACTS[fact], text) for name, text in texts_of(told.texts["report.md"]).items()}
    assert max(len(found) for found in several.values()) >= 2, several
    assert {name: found for name, found in several.items() if len(set(found)) > 1} == {}


def numbers(text: str) -> set[str]:
    return {f"{one} {match[3]}" for match in NUMBER.finditer(text) for one in match.group(1, 2) if one}


def plain(page: str) -> str:
    """Text of a page without its style and its charts."""
    bare = re.sub(r"<(style|svg|title)\b.*?</\1>", "", page, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", " | ", bare))


@pytest.mark.slow
def test_page_has_the_texts_numbers_alone(told: Told) -> None:
    assert numbers(plain(told.texts["report.html"])) - numbers(told.texts["report.md"]) == set()


def test_no_number_is_rounded_in_two_ways() -> None:
    found = reported(plan(), hours())[0]
    for text in (report_markdown(found), plain(report_html(found))):
        assert set(rounded_twice(text)) == set()


@pytest.mark.slow
def test_data_has_one_value_a_fact(told: Told) -> None:
    for tier in told.month["tiers"]:
        rows = {row["key"]: row["observed"].get("value") for row in tier["monitoring"]}
        answers = {
            name: value["value"]
            for row in tier["questions"]
            for name, value in row["numbers"].items()
            if "value" in value
        }
        (measured,) = (one for one in tier["costs"] if one["name"] == "measured")
        assert measured["per_million_tokens"] == pytest.approx(rows["cost_per_million_tokens"])
        assert answers["cost_per_million_tokens"] == rows["cost_per_million_tokens"]
        assert measured["utilization"] == answers["fleet_utilization"] == rows["fleet_utilization"]
        assert answers["usable_rps"] == tier["curve"]["usable"]["rps"] == tier["count"]["capacity"]["rps"]
        assert tier["workload"]["peak_rps"] == tier["count"]["demand_rps"]
        for signal in ("completed_rps", "ttft_p99_seconds", "tpot_p99_seconds", "gpu_utilization"):
            assert answers[signal] == rows[signal]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["report.md", "report.html"])
def test_the_lengths_of_a_tier_stand_once(told: Told, form: str) -> None:
    text = told.texts[form]
    assert text.count("All numbers at prompts P50 ") == len(told.month["tiers"])
    first = text.index("Plan against production")
    assert text.index("All numbers at prompts P50 ") < first


@pytest.mark.slow
def test_month_prints_two_pages_a_tier(told: Told, tmp_path: Path) -> None:
    assert count_pages(tmp_path, told.texts["report.html"]) <= 2 * len(told.month["tiers"])
