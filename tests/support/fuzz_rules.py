"""Fuzz targets around plans: a plan that gets a curve, the telemetry of a benchmark."""

from __future__ import annotations

import copy
import gzip
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml
from fuzz_documents import HERE, YAML_WORDS
from fuzz_pages import thinned
from fuzz_target import Target, bounded_words, sound

from agent.benchmarks.plan_edit import chosen_tier, open_plan, replace_curve
from agent.benchmarks.points import BenchmarkMeasurement
from agent.benchmarks.telemetry import open_telemetry
from rules.plan.schema import BenchmarkCurve, Point

CURVE = BenchmarkCurve(
    source=("a.json",),
    points=tuple(Point(concurrency=place, completed_rps=place, ttft_p99_seconds=0.1 * place) for place in (1.0, 2.0)),
)


def run_plan_edit(data: bytes) -> None:
    """The first byte chooses between YAML and JSON. What is written has the new curve, and all else as it was."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("p.json" if data[:1] == b"\x01" else "p.yaml")
        path.write_bytes(data[1:])
        plan = open_plan(path)
        tier = chosen_tier(plan, None)
        edited = replace_curve(plan, tier, CURVE, head=("head",), notes=((), ("note",)))
        bounded_words(edited.lost_comments)
        path.write_text(edited.text, encoding="utf-8", newline="")
        again = open_plan(path)
    before, after = copy.deepcopy(plan.document.data), copy.deepcopy(again.document.data)
    written = after["tiers"][tier].pop("curve")
    before["tiers"][tier].pop("curve", None)
    assert BenchmarkCurve.model_validate(written) == CURVE, "another curve stands there"
    assert after == before, "something else was changed"


RUN = BenchmarkMeasurement(
    source="run.json",
    tool="t",
    loop="open",
    point=Point(completed_rps=1.0, requests=10),
    started_at=1e9,
    ended_at=1e9 + 60,
)


def run_telemetry(data: bytes) -> None:
    """The first byte chooses between pages saved around a run and a recording of it."""
    parts = data[1:].split(b"\n---\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if data[:1] == b"\x01":
            (folder / "recording.yaml").write_bytes(parts[0])
            (folder / "s.jsonl.gz").write_bytes(gzip.compress(b"".join(parts[1:2]), compresslevel=1))
        else:
            for place, part in zip(("before", "after_run", "after"), parts, strict=False):
                (folder / f"m_{place}.prom").write_bytes(part)
        found = open_telemetry(name).read_run(RUN)
    bounded_words(found.remarks)
    sound({key: value for key, value in found.values.items() if isinstance(value, float)}, "value")


def _plans() -> Iterator[bytes]:
    for path in sorted((HERE / "plans").glob("*.yaml")):
        if path.name != "ten-mistakes.yaml":
            yield b"\x00" + path.read_bytes()
    small = yaml.safe_load((HERE / "plans" / "cpu-small.yaml").read_text(encoding="utf-8"))
    yield b"\x01" + json.dumps(small, default=str, indent=1).encode()
    yield b"\x00" + json.dumps(small, default=str).encode()


_FEW = re.compile(rb"start_time|requests|tokens_total|time_to_first|success|e2e|per_output|cache|llamacpp")


def _few(page: bytes) -> bytes:
    """What a run is looked up by, of a page."""
    return b"".join(line for line in thinned(page).splitlines(keepends=True) if _FEW.search(line))


def _telemetries() -> Iterator[bytes]:
    for name in ("llamacpp", "sglang"):
        saved = [_few((HERE / "pages" / f"{name}_{when}.prom").read_bytes()) for when in ("startup", "after_load")]
        yield b"\x00" + b"\n---\n".join((*saved, saved[-1]))
    page = _few((HERE / "pages" / "steady_after_load.prom").read_bytes())
    yield b"\x00" + b"\n---\n".join((page.replace(b"1.0\n", b"0.0\n"), page))
    yield b"\x00" + b"\n---\n".join((b"", page))
    grown = page.replace(b".0\n", b"9.0\n")
    lines = [json.dumps({"t": 1e9 + 15 * place, "text": (page, grown)[place > 2].decode()}) for place in range(-1, 6)]
    index = b"name: n\ntargets:\n  - {file: s.jsonl.gz, tier: t, replica: r, engine: vllm}"
    yield b"\x01" + index + b"\n---\n" + "\n".join(lines).encode()


TARGETS = (
    Target(
        name="plan_edit",
        run=run_plan_edit,
        seeds=_plans,
        words=(*YAML_WORDS, b"curve:\n", b"curve: {}\n", b"# c\n", b"<<: *a\n", b"\r\n"),
        place="/p.",
        reads=("agent.benchmarks.plan_edit", "exporters.documents.plan_files"),
    ),
    Target(
        name="telemetry",
        run=run_telemetry,
        seeds=_telemetries,
        words=(b"NaN", b"-1", b"1e308", b"\n---\n", b'{"t": ', b" 0\n", b"process_start_time_seconds 1\n"),
        reads=tuple(f"agent.benchmarks.telemetry_{one}" for one in ("files", "merge")),
    ),
)
