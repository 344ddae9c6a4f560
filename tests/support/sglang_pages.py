"""Pages of SGLang for tests, and how a test changes them."""

import re

from rules.telemetry.snapshots import Snapshot

RELEASES = ("0.4.6", "0.5.3", "0.5.10", "0.5.23")
NEWEST, STARTUP, REAL = "sglang-0.5.23.prom", "sglang_startup.prom", "sglang_after_load.prom"
OURS = [f"sglang-{release}.prom" for release in RELEASES] + [STARTUP, REAL]

RANKS = 'moe_ep_rank="0",pp_rank="0",tp_rank="0"'


def amounts(page: Snapshot) -> tuple[object, ...]:
    """What a page says, without when."""
    return page.counters, page.histograms, page.gauges, page.problems


def printed(text: str, series: str) -> float:
    """The sum of all series whose printed name and labels match."""
    found = re.findall(rf"(?m)^{series} (\S+)$", text)
    assert found, series
    return sum(map(float, found))


def with_value(text: str, name: str, value: str) -> str:
    """The page with another value in the one series of a name."""
    changed, times = re.subn(rf"(?m)^(sglang:{re.escape(name)}\{{.*) \S+$", rf"\g<1> {value}", text)
    assert times == 1, f"{name}: {times} series"
    return changed


def without_lines(text: str, *patterns: str) -> str:
    """The page without the samples and the TYPE lines that match."""
    gone = re.compile("|".join(rf"(# TYPE |# HELP )?sglang:({pattern})" for pattern in patterns))
    return "".join(line for line in text.splitlines(keepends=True) if not gone.match(line))


def of_ranks(text: str, label: str, count: int) -> str:
    """The page once more for every other rank: series with rank labels get that label with 0, 1, ..."""
    lines = text.splitlines(keepends=True)
    ranked = [line for line in lines if RANKS in line and not line.startswith("#")]
    for rank in range(1, count):
        if label == "dp_rank":
            lines += [line.replace('tp_rank="0"', f'tp_rank="{rank}",dp_rank="{rank}"') for line in ranked]
        else:
            lines += [line.replace(f'{label}="0"', f'{label}="{rank}"') for line in ranked]
    return "".join(lines)
