"""Golden files: what the product reads and judges today, in `tests/goldens`, so that a smaller house judges the same.

    make goldens [WRITE=1] [PART=verdicts/steady]

Compares the files whose names begin so (default: all), or writes them anew.
There are no sentences in them: texts may change, judgement may not. `make test` compares pages, verdicts and metrics;
report and forecast take minutes, and `make goldens` compares them too. Files of data that is not ours are compared
where `../shared` is there.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gpu_pages
import recorded
import yaml
from daemon_runs import at, run_command
from paths import SHARED, TESTS
from status_samples import agent_status

from agent.demo.simulation.weeks import CONFIG, fill
from agent.errors import ScrapeError
from agent.scrape.scrapers import PageReader
from exporters.metrics import exposition
from rules.gpu_sources.registry import EXPORTERS
from rules.telemetry.snapshots import GpuReadout, Snapshot

GOLDENS = TESTS / "goldens"
PUBLIC = SHARED / "recordings" / "public"
DIGITS = 10
"""Significant digits of a number: sums in another order differ in the last two of a float."""
FORECAST_TOLERANCE = 0.02
NOW = 1_800_000_000.0
END = 1_795_248_000.0
"""Saturday, 21 November 2026, 08:00 UTC: the end of the simulated weeks."""
DAY = 86_400.0
WIDTH = 110
"""Characters that stand in one line of a golden file at most."""

TEXTS = frozenset(
    (
        *("sentence", "text", "texts", "action", "actions", "advice", "relief", "headline", "verdict", "summary"),
        *("details", "evidence", "against", "note", "notes", "title", "label", "meaning", "question", "answer", "why"),
        *("detail", "reason_text", "version"),
    )
)
"""Keys of report.json whose values are words."""

Document = Any
"""What JSON can hold."""


@dataclass(frozen=True, slots=True)
class Golden:
    """One golden file. `compute` gives its document, or None where the data is not on this machine."""

    name: str
    compute: Callable[[], Document | None]
    slow: bool = False
    tolerance: float = 1e-8

    @property
    def path(self) -> Path:
        return GOLDENS / f"{self.name}.json"


def all_goldens() -> Iterator[Golden]:
    """Every golden file, each once."""
    for name, path in _engine_pages().items():
        yield Golden(f"pages/{name}", partial(_engine_page, path))
    for name, exporter in (gpu_pages.MADE_PAGES | gpu_pages.SHARED_PAGES).items():
        yield Golden(f"pages/{Path(name).stem}", partial(_gpu_page, name, exporter))
    for name in recorded.names():
        yield Golden(f"verdicts/{name}", partial(_verdicts_by_plan, name))
    residency = TESTS / "residency"
    yield Golden("verdicts/kv_churn", partial(_verdicts, residency / "kv_churn", residency / "plan.yaml"))
    pressure = PUBLIC / "kv_pressure_4090"
    for plan in ("plan", "plan_curve"):
        yield Golden(
            f"verdicts/public/kv_pressure_4090-{plan}", partial(_verdicts, pressure, pressure / f"{plan}.yaml")
        )
    for folder in sorted((PUBLIC / "cells_4090").glob("*")):
        yield Golden(f"verdicts/public/{folder.name}", partial(_verdicts, folder, None))
    yield Golden("metrics", _metrics)
    yield Golden("report", lambda: _report()["report"], slow=True)
    yield Golden("plan.next", lambda: _report()["plan.next"], slow=True)
    for trace in ("nab_elb_requests", "nab_tweets_goog", "nasa_http_1995"):
        yield Golden(f"forecast/{trace}", partial(_forecast, trace), slow=True, tolerance=FORECAST_TOLERANCE)


def differences(golden: Golden) -> list[str] | None:
    """Return one line a difference, `place: before, after`, or None where the data is not on this machine."""
    document = golden.compute()
    if document is None:
        return None
    if not golden.path.is_file():
        return [f"{golden.name}: there is no golden file; write it: make goldens WRITE=1"]
    before = json.loads(golden.path.read_text(encoding="utf-8"))
    return [f"{golden.name} {line}" for line in _compare(before, _plain(document), golden.tolerance)]


def write(golden: Golden) -> bool:
    """Write the file anew. Return whether its data is on this machine."""
    document = golden.compute()
    if document is not None:
        golden.path.parent.mkdir(parents=True, exist_ok=True)
        golden.path.write_text(_print(_plain(document)) + "\n", encoding="utf-8")
    return document is not None


def _engine_pages() -> dict[str, Path]:
    """The pages of engines by name, ours first; a page of the same name in another folder is the same page."""
    paths = [*sorted((TESTS / "pages").glob("*.*"))]
    for folder in ("pages/real", "pages/generated", "pages"):
        paths += sorted((SHARED / folder).glob("*.prom"))
    gpu = {Path(name).stem for name in (*gpu_pages.MADE_PAGES, *gpu_pages.SHARED_PAGES)}
    pages: dict[str, Path] = {}
    for path in paths:
        name = path.name.removesuffix(".prom").removesuffix(".txt")
        if name not in gpu and not name.startswith("nvidia_gpu_exporter"):
            pages.setdefault(name, path)
    return pages


def _engine_page(path: Path) -> Document:
    """The page's snapshot, or its error's name."""
    try:
        return _snapshot(PageReader().read(path.read_bytes(), NOW))
    except ScrapeError as error:
        return {"error": str(error.kind)}


def _snapshot(page: Snapshot) -> Document:
    return {
        "engine": page.engine,
        "generation": page.generation,
        "started_at": page.started_at,
        "ready_at": page.ready_at,
        "counters": page.counters,
        "gauges": page.gauges,
        "histograms": {
            family: {"edges": one.edges, "counts": one.counts, "total": one.total}
            for family, one in page.histograms.items()
        },
        "facts": page.facts,
        "problems": len(page.problems),
        "broken": page.broken,
        "contradictory": page.contradictory,
        "impossible": page.impossible,
        "sampled": page.sampled,
        "pod": None if page.pod is None else str(page.pod),
    }


def _gpu_page(name: str, exporter: str) -> Document | None:
    if name in gpu_pages.SHARED_PAGES and not (gpu_pages.SHARED_PAGES_FOLDER / name).exists():
        return None
    (reader,) = (one for one in EXPORTERS if one.name == exporter)
    page = gpu_pages.read_page(gpu_pages.page_text(name), reader, NOW)
    return {readout.gpu: _readout(readout) for readout in page.readouts}


def _readout(gpu: GpuReadout) -> Document:
    return {"counters": gpu.counters, "gauges": gpu.gauges, "gaps": sorted(gpu.gaps), "sampled": gpu.sampled}


def _verdicts_by_plan(name: str) -> Document:
    text = (recorded.folder(name) / "recording.yaml").read_text(encoding="utf-8")
    plans = yaml.safe_load(text)["truth"]["root_by_plan"]
    return {
        plan: _verdicts(recorded.folder(name), None if plan == "none" else recorded.PLANS / f"{plan}.yaml")
        for plan in plans
    }


def _verdicts(recording: Path, plan: Path | None) -> Document | None:
    """What a replay found: each verdict's worst status, incidents, and what is unknown at the end. Times are unix seconds."""
    if not recording.exists():
        return None
    words = ["replay", str(recording), "--format", "json", *(["--plan", str(plan)] if plan else [])]
    told = json.loads(_said(*words))
    return {
        "verdicts": sorted(
            _row(v, "rule", "tier", "replica", "status", "certainty", "started_at", "ended_at")
            for v in told["verdicts"]
        ),
        "incidents": [
            {
                "root": _row(one, "root", "tier", "severity", "started_at", "ended_at"),
                "findings": sorted(_row(f, "rule", "replica", "started_at", "ended_at") for f in one["findings"]),
            }
            for one in told["incidents"]
        ],
        "unknown": sorted(
            _row(u, "rule", "tier", "replica", "reason") for u in told["unknowns"] if u["ended_at"] is None
        ),
    }


def _row(record: Mapping[str, Any], *keys: str) -> str:
    """One line: the values, apart by blanks; times to the tenth of a second."""
    values = (f"{record[key]:.1f}" if isinstance(record[key], float) else record[key] for key in keys)
    return " ".join("-" if value is None else str(value) for value in values)


def _said(*words: str) -> str:
    """The standard output of a command."""
    code, out, errors = run_command(*words)
    assert code != 2, f"{' '.join(words)}: {errors}"
    return out


def _metrics() -> Document:
    """`/metrics` of one status: series and their values, and the type of each family."""
    page, _ = exposition.render(agent_status(), "")
    series, types = {}, {}
    for line in page.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            types[name] = kind
        elif not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            series[name] = float(value)
    return {"types": types, "series": series}


_reports: dict[str, Document] = {}


def _report() -> Mapping[str, Document]:
    """The report of the demo's four weeks and the next plan, without the forecast."""
    if not _reports:
        with tempfile.TemporaryDirectory() as place, at(END):
            folder = Path(place) / "past"
            fill(folder, seconds=28 * DAY, end=END + 61.0, fine_seconds=3600.0)
            config = folder / CONFIG
            config.write_text(f"{config.read_text()}forecast: {{enabled: false}}\n")
            _said("report", "-c", str(config), "--since", "28d", "--out", f"{place}/report")
            report = json.loads(Path(place, "report", "report.json").read_text(encoding="utf-8"))
            _reports["report"] = _without_texts(report)
            _reports["plan.next"] = yaml.safe_load(Path(place, "report", "plan.next.yaml").read_text(encoding="utf-8"))
    return _reports


def _without_texts(value: Document) -> Document:
    """The document without what is written for people."""
    if isinstance(value, dict):
        return {key: _without_texts(below) for key, below in value.items() if key not in TEXTS}
    if isinstance(value, list):
        return [_without_texts(below) for below in value]
    return None if isinstance(value, str) and value.count(" ") > 2 else value


def _forecast(trace: str) -> Document | None:
    """Scores of each method on a public trace, by `sizewatch backtest`."""
    path = SHARED / "traces" / f"{trace}.csv.gz"
    if not path.exists():
        return None
    told = json.loads(_said("backtest", "--history", str(path), "--horizons", "15m,24h", "--format", "json"))
    return {
        f"{row['method']}, {row['horizon_seconds'] / 60:g} minutes": {
            name: row[name] for name in ("wape", "pinball", "coverage")
        }
        for row in told["scores"]
    }


def _plain(value: Document) -> Document:
    """The document as JSON gives it back: rounded numbers, sorted sets, lists."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(below) for key, below in sorted(value.items())}
    rows = [_plain(below) for below in value]
    return sorted(rows) if isinstance(value, (set, frozenset)) else rows


def _print(value: Document, indent: str = "") -> str:
    """JSON with a line for each entry; what is short stands in one line, and rows have each their own."""
    short, inner = json.dumps(value), indent + " "
    is_rows = isinstance(value, list) and len(value) > 1 and all(isinstance(below, str) for below in value)
    if not isinstance(value, (dict, list)) or (len(short) <= WIDTH and not is_rows):
        return short
    if isinstance(value, dict):
        rows = [f"{inner}{json.dumps(key)}: {_print(below, inner)}" for key, below in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if any(isinstance(below, (int, float)) for below in value):
        return short
    return "[\n" + ",\n".join(f"{inner}{_print(below, inner)}" for below in value) + f"\n{indent}]"


def _compare(before: Document, after: Document, tolerance: float) -> Iterator[str]:
    """One line a difference. Lists of rows are compared as sets, so that one more row is one difference."""
    old, new = dict(_leaves(before, "")), dict(_leaves(after, ""))
    for place in sorted(old.keys() | new.keys()):
        if place not in new:
            yield f"{place}: gone, was {_short(old[place])}"
        elif place not in old:
            yield f"{place}: new, {_short(new[place])}"
        elif not _equal(old[place], new[place], tolerance):
            yield f"{place}: {_short(old[place])}, now {_short(new[place])}"


def _leaves(value: Document, place: str) -> Iterator[tuple[str, Document]]:
    """Each value by its place; a row of text is a place of its own, with how often it is there."""
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _leaves(below, f"{place}.{key}" if place else key)
    elif isinstance(value, list) and value and all(isinstance(below, str) for below in value):
        yield from ((f"{place}: {row}", value.count(row)) for row in value)
    elif isinstance(value, list) and value:
        for number, below in enumerate(value):
            yield from _leaves(below, f"{place}[{number}]")
    else:
        yield place, value


def _equal(before: Document, after: Document, tolerance: float) -> bool:
    numbers = (int, float)
    if isinstance(before, numbers) and isinstance(after, numbers) and not isinstance(before, bool):
        return abs(before - after) <= tolerance * max(abs(before), abs(after))
    return bool(before == after)


def _short(value: Document) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("parts", nargs="*", metavar="PART", help="begins of names; default: all")
    options.add_argument("--write", action="store_true", help="write the files anew")
    given = options.parse_args()
    goldens = [g for g in all_goldens() if not given.parts or g.name.startswith(tuple(given.parts))]
    lines, absent = [], 0
    for golden in goldens:
        if given.write:
            absent += not write(golden)
            continue
        different = differences(golden)
        absent += different is None
        for line in different or ():
            print(line)
            lines.append(line)
    verb = "written" if given.write else "compared"
    print(f"{len(goldens) - absent} golden files {verb}, {len(lines)} differences; {absent} not: their data is absent")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
