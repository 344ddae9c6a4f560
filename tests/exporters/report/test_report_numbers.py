"""The report as it is read: no number has two values, and its page can be read on a phone, in print and without a mouse."""

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from html import unescape
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden_text import check_golden
from judging_samples import TOKEN_EDGES
from page_reader import PageReader, browse, measure_page
from report_samples import POINTS, TIER, hour, hours, plan, reported, seen_of, tier_view
from test_report_truth import Told, report_on_four_weeks  # noqa: F401 - a fixture

from exporters.report.build import is_benchmark_refuted, next_plan_text
from exporters.report.formats import report_html, report_markdown
from rules.catalogue.registry import margin_of
from rules.plan.replica_count import count_planned
from rules.plan.schema import Plan, parse_plan
from rules.resize.proposal import propose_size
from rules.telemetry.windows import Window

WEEK = reported(plan(), hours())[0]
PAGE = report_html(WEEK)

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


def texts_of(text: str) -> dict[str, str]:
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
    for text in (report_markdown(WEEK), plain(PAGE)):
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


TEXT = ("ink", "soft", "ok", "warning", "critical", "limit")
READABLE = 4.5
"""WCAG 2.2, 1.4.3: contrast of text, as a ratio."""

THEMES: tuple[dict[str, str], ...] = ({}, {})
"""Colours of the style by name, light and dark. The report's own stand last."""
for name, *pair in re.findall(r"--([\w-]+):light-dark\((#\w+),(#\w+)\)", PAGE):
    for theme, colour in zip(THEMES, pair, strict=True):
        theme[name] = colour


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(one * 2 for one in colour[1:])
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES, ids=["light", "dark"])
@pytest.mark.parametrize("text", TEXT)
def test_text_can_be_read_on_every_ground(theme: dict[str, str], text: str) -> None:
    grounds = {"page", *(f"{name}-fill" for name in ("note", "warning", "critical") if text in ("ink", "soft", name))}
    contrasts = {ground: contrast(theme[text], theme[ground]) for ground in grounds}
    assert min(contrasts.values()) >= READABLE, contrasts


def test_headings_go_down_by_one_step() -> None:
    levels = [int(tag[1]) for tag, _ in PageReader(PAGE).tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))


def test_header_cells_say_of_what() -> None:
    assert re.findall(r"<th(?! scope=)[ >]", PAGE) == []
    assert re.findall(r"<th[^>]*>\s*</th>", PAGE) == []
    for table in re.findall(r"<table.*?</table>", PAGE, flags=re.DOTALL):
        assert table.count('<th scope="col">') >= 2
        assert '<th scope="row">' in table


def test_sideways_scrolling_needs_no_mouse() -> None:
    tags = PageReader(PAGE).tags
    wide = [attributes for tag, attributes in tags if tag == "div" and attributes.get("class") == "wide"]
    assert wide
    assert all(attributes.get("tabindex") == "0" for attributes in wide)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 760, 1000, 1280])
def test_nothing_sticks_out_at_any_width(tmp_path: Path, width: int) -> None:
    widest, window, _ = measure_page(PAGE, tmp_path, width)
    assert window == width
    assert widest <= width


@pytest.mark.slow
def test_month_prints_two_pages_a_tier(told: Told, tmp_path: Path) -> None:
    source, target = tmp_path / "printed.html", tmp_path / "report.pdf"
    source.write_text(told.texts["report.html"], encoding="utf-8")
    browse(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={target}", source.as_uri())
    assert target.read_bytes().startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", target.read_bytes())) <= 2 * len(told.month["tiers"])


LAST = TOKEN_EDGES[-2]
"""The last edge that is a number: what is longer lies above it."""

BEYOND = hours(168, outputs=LAST + 1.0)

RATES = {"average": 30, "peak": 50}


def planned(p50: float | None = None, p95: float | None = None, p99: float | None = None, **parts: Any) -> Plan:
    tokens = {key: value for key, value in (("p50", p50), ("p95", p95), ("p99", p99)) if value is not None}
    return plan(workload={"requests_per_second": RATES, "generation_tokens": tokens}, **parts)


def mixed_hours() -> list[Window]:
    """Nine of ten outputs are 950 tokens long, one lies in the last bucket: P95 and P99 are open, P50 is not."""
    name = "generation_tokens_per_request"
    windows = []
    for window, longer in zip(hours(168, outputs=950.0), BEYOND, strict=True):
        (base,), (tail,) = window.histograms[name], longer.histograms[name]
        counts = tuple(0.9 * a + 0.1 * b for a, b in zip(base.counts, tail.counts, strict=True))
        mixed = type(base)(edges=base.edges, counts=counts, total=None)
        windows.append(replace(window, histograms={**window.histograms, name: (mixed,)}))
    return windows


def test_next_lengths_read_as_the_golden() -> None:
    """What production measured is taken over, a bound of it never."""
    weeks = {
        "bounds alone": (planned(90, 190, 199), BEYOND),
        "no planned length": (planned(), BEYOND),
        # P99 is planned beyond every bucket, which nothing contradicts.
        "quantile below a longer one": (planned(90, 190, 5_000_000), mixed_hours()),
        "measured in a bucket": (planned(900, 1900, 1990), hours()),
        "mean above the guardrail": (planned(p50=90, p99=199, guardrails={"max_generation_tokens": 2000}), BEYOND),
        "no recommendation": (planned(90, 190, 199), hours(84, outputs=LAST + 1.0)),
    }
    lines = []
    for name, (one, windows) in weeks.items():
        found, proposed = reported(one, windows)
        assert proposed is not None
        text = next_plan_text(found, proposed)
        assert parse_plan(yaml.safe_load(text)) == proposed
        assert all(f"# {line}." in " ".join(text.replace("#   ", "").split()) for line in found.tiers[0].left)
        workload = proposed.tiers["t"].workload
        lines += [f"---- {name}", str(workload and workload.generation_tokens), *found.tiers[0].left]
        lines += [line.strip() for line in text.splitlines() if re.search(r"# .*(generation|outputs)", line)]
        bounds = re.findall(r"not taken over, only bounds: [^\n<]*", report_markdown(found))
        assert bounds == re.findall(r"not taken over, only bounds: [^\n<]*", report_html(found))
        lines += [*bounds, *(change for change in found.plan_changes if "generation" in change)]
    check_golden(__file__, "next_lengths.txt", "\n".join(lines))


@pytest.mark.parametrize(
    ("prompts", "outputs", "hits", "expected", "count"),
    [
        (820.0, 80.0, (0.3, 0.3), (800.0, 80.0, 0.3), 6),
        (1600.0, 80.0, (0.3, 0.3), (1600.0, 80.0, 0.3), 8),
        (800.0, 160.0, (0.3, 0.3), (800.0, 160.0, 0.3), 8),
        (800.0, 80.0, (0.3, 0.8), (800.0, 80.0, 0.8), 4),
        # A fall that a rule fires on is a fault: it is answered by replicas, and stays out of the plan.
        (800.0, 80.0, (0.6, 0.0), (800.0, 80.0, 0.6), 9),
    ],
)
def test_accepted_plan_is_kept_next_week(prompts: float, outputs: float, hits: Any, expected: Any, count: int) -> None:
    week = []
    for window in hours(168, lambda number: 30.0, prompts=prompts, outputs=outputs, kv=0.1):
        looked_up = window.counters["prompt_tokens"]
        lookups = {"prefix_queried_tokens": looked_up, "prefix_hit_tokens": looked_up * hits[1]}
        week.append(replace(window, counters={**window.counters, **lookups}))
    workload = {**TIER["workload"], "prefix_hit_ratio": hits[0]}
    # The benchmark's files tell no lengths.
    untold = [{**point, "output_tokens_per_second": None} for point in POINTS]
    _, first = reported(plan(workload=workload, curve={"loop": "open", "points": untold}), week)
    tier = first.tiers["t"]
    assert (tier.workload.prompt_tokens.mean, tier.workload.generation_tokens.mean) == expected[:2]
    assert tier.workload.prefix_hit_ratio == expected[2]
    found, second = reported(first, week)
    assert (second, found.tiers[0].proposal.replicas, tier.fleet.instances) == (first, count, count)
    if hits[1]:
        assert count_planned(tier, margin_of()).replicas == count


NO_LENGTHS = {"workload": None, "curve": {"points": [{**one, "output_tokens_per_second": None} for one in POINTS]}}


@pytest.mark.parametrize(
    ("times", "kept", "parts", "refuted"),
    [(1.0, 4, {}, True), (2.0, 4, {}, False), (0.5, 8, {}, False), (1.0, 4, NO_LENGTHS, True)],
)
def test_other_lengths_refute_no_benchmark(times: float, kept: float, parts: dict[str, Any], refuted: bool) -> None:
    """The SLO breaks between `kept` and one rps more, of requests of so many times the benchmark's lengths."""
    lengths = {"prompts": 800.0 * times, "outputs": 80.0 * times}
    loads = [(10.0 * kept + 10.0, {0.15: 0.95, 3.0: 0.05}), *[(10.0 * kept, {0.15: 1.0})] * 3]
    week = [hour(n, rps, ttft=ttft, **lengths) for n, (rps, ttft) in enumerate(loads * 42)]
    assert is_benchmark_refuted(propose_size(seen_of(tier_view(**parts), week), [])) is refuted
