"""Fuzz targets that read files people write or tools leave: configuration, plan, benchmark results, traces, history."""

from __future__ import annotations

import json
import math
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from fuzz_target import Target, bounded_words

from agent import config
from agent.benchmarks.formats import read_results
from agent.config_files import load_plan
from agent.forecasting.csv_series import read_trace
from agent.forecasting.exchange import Failed, answer_line, answer_of, question_line, question_of
from agent.forecasting.history_forecasts import no_forecast
from agent.history.bodies import pack, unpack
from agent.history.chunks import ChunkRow, seal, unseal
from rules.window_record import from_record, to_record

HERE = Path(__file__).parent
SHARED = HERE.parent.parent / "shared" / "bench"
BASE = 1_700_006_400

YAML_WORDS = (
    *(
        b"&a ",
        b"*a",
        b"<<: *a",
        b"? ",
        b"- ",
        b": ",
        b"---\n",
        b"!!python/object:os.system ",
        b"!!binary ",
        b"2026-13-45",
    ),
    *(b"1e999", b".nan", b".inf", b"0x" + b"f" * 300, b"9" * 5000, b"-1", b"null", b"true", b'"\\ud800"', b"[" * 1500),
    *(b"${HOME}", b"A" * 10_000, b"1:" * 50, b"\t", b"\xff", b"\x00", b"'", b"\xe2\x80\xa8"),
)
JSON_WORDS = (
    *(b"NaN", b"Infinity", b"1e999", b"-1", b"1e308", b"9" * 5000, b"1" + b"0" * 400, b"null", b"true", b'"\\ud800"'),
    *(b"[" * 2000, b'{"a":' * 500, b"[]", b"{}", b'""', b"0", b'"' + b"A" * 10_000 + b'"', b"\xff", b"\\u0000"),
)


def _written(data: bytes, name: str, read: object) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        return read(path)  # type: ignore[operator]


def run_config(data: bytes) -> None:
    loaded = _written(data, "c.yaml", lambda path: config.load(path, environment={}))
    bounded_words(loaded.warnings)  # type: ignore[attr-defined]


def run_plan(data: bytes) -> None:
    """The first byte chooses between YAML and JSON."""
    _written(data[1:], "p.json" if data[:1] == b"\x01" else "p.yaml", load_plan)


def run_benchmark(data: bytes) -> None:
    for measured in _written(data, "b.json", read_results):  # type: ignore[attr-defined]
        for name in measured.__dataclass_fields__:
            value = getattr(measured, name)
            if isinstance(value, float):
                assert 0 <= value < math.inf, f"{name} is {value}"


def run_trace(data: bytes) -> None:
    trace = _written(data, "t.csv", read_trace)
    bounded_words(trace.notes)  # type: ignore[attr-defined]


def run_exchange(data: bytes) -> None:
    try:
        question_of(data)
    except ValueError:
        answer_of(data)


def run_record(data: bytes) -> None:
    """A row's body, packed as the history packs it: what is read, comes back."""
    window = unpack(zlib.compress(data))
    again = from_record(json.loads(json.dumps(to_record(window))))
    assert again == window or "nan" in repr(window), "a record does not come back"
    if all(map(math.isfinite, (window.start, window.end))) and "nan" not in repr(window):
        assert unpack(pack(window)) == window


def run_chunk(data: bytes) -> None:
    rows = unseal(BASE, zlib.compress(data, 1))
    for row in rows:
        assert isinstance(row.start, int)


def run_body(data: bytes) -> None:
    """A body as the file holds it, damaged."""
    unseal(BASE, data)


def _plans() -> Iterator[bytes]:
    for path in sorted((HERE / "plans").glob("*.yaml")):
        yield b"\x00" + path.read_bytes()
    import yaml

    small = yaml.safe_load((HERE / "plans" / "cpu-small.yaml").read_text(encoding="utf-8"))
    yield b"\x01" + json.dumps(small, default=str).encode()


FULL_CONFIG = b"""\
role: standalone
scrape_interval: 15s
data_dir: /tmp/x
plan: plan.yaml
targets:
  - {url: "http://127.0.0.1:8000/metrics", tier: t, replica: r, bearer_token_file: /run/t, engine: vllm}
gpus: {nvml: auto, dcgm: {url: "http://127.0.0.1:9400/metrics"}}
web: {listen: "127.0.0.1:9090"}
alerting: {alertmanagers: [{url: "http://127.0.0.1:9093"}]}
history: {minutes: 7d}
report: {}
thresholds: {t: {TtftDivergence: {factor: 1.5}}}
"""


def _configs() -> Iterator[bytes]:
    yield FULL_CONFIG
    yield from (path.read_bytes() for path in sorted((HERE / "configs").glob("*.yaml")))
    for path in sorted((HERE.parent / "deploy").glob("**/*.yaml")):
        if b"scrape_interval" in (body := path.read_bytes()) and len(body) < 16_384:
            yield body


def _benchmarks() -> Iterator[bytes]:
    from test_benchmark_formats import SAMPLES

    yield from (json.dumps(one, default=list).encode() for one in SAMPLES.values())
    yield b"\n".join(json.dumps(SAMPLES["vllm-bench"], default=list).encode() for _ in range(2))
    for path in sorted(SHARED.glob("**/*.json")) if SHARED.is_dir() else ():
        if path.stat().st_size < 32_768:
            yield path.read_bytes()


def _traces() -> Iterator[bytes]:
    rows = "".join(f"{BASE + 60 * place},{10 + place}\n" for place in range(40))
    yield f"timestamp,requests\n{rows}".encode()
    rows = "".join(
        f"2026-03-{1 + place // 24:02d}T{place % 24:02d}:00:00Z,{place},{7 * place},\n" for place in range(60)
    )
    yield f"timestamp,requests,prompt_tokens,output_tokens\n{rows}".encode()


def _windows() -> Iterator[object]:
    import history_samples

    yield from (history_samples.window(minute) for minute in range(3))
    yield history_samples.window(3, covered=0.0)
    yield history_samples.recorded_minutes("cascade_fast")[0]


def _records() -> Iterator[bytes]:
    yield from (json.dumps(to_record(window)).encode() for window in _windows())  # type: ignore[arg-type]


def _bodies() -> Iterator[bytes]:
    rows = [ChunkRow(BASE + 60 * p, p, "", w) for p, w in enumerate(_windows())]  # type: ignore[arg-type]
    yield seal(BASE, rows)
    yield seal(BASE, rows[:1])


def _exchanges() -> Iterator[bytes]:
    from forecast_samples import question

    yield question_line(question(replica_hour=10.0, currency="USD"))
    yield answer_line(no_forecast(question(), "no demand of this tier has been kept yet"))
    yield answer_line(Failed(tier="h100", trouble="ZeroDivisionError"))


CSV_WORDS = (
    *(
        b"timestamp",
        b"requests",
        b"prompt_tokens",
        b",",
        b'"',
        b"\r\n",
        b"\x00",
        b"\xff",
        b"nan",
        b"inf",
        b"-1",
        b"1e308",
    ),
    *(
        b"1e999",
        b"9" * 400,
        b"2026-02-30",
        b"9999-12-31T23:59:59Z",
        b"0001-01-01",
        b"1_0",
        b"\xef\xbb\xbf",
        b"A" * 10_000,
    ),
    *(b"T24:00", b"+99:99", b"\xd9\xa3", b"True", b" ", b";", b"\x1f\x8b"),
)

TARGETS = (
    Target(name="config", run=run_config, seeds=_configs, words=YAML_WORDS, place=".yaml"),
    Target(name="plan", run=run_plan, seeds=_plans, words=(*YAML_WORDS, *JSON_WORDS), place="/p."),
    Target(name="benchmark", run=run_benchmark, seeds=_benchmarks, words=JSON_WORDS, place="b.json"),
    Target(name="trace", run=run_trace, seeds=_traces, words=CSV_WORDS, place="t.csv"),
    Target(name="exchange", run=run_exchange, seeds=_exchanges, declared=(ValueError,), told=False, words=JSON_WORDS),
    Target(name="record", run=run_record, seeds=_records, declared=(ValueError,), words=JSON_WORDS),
    Target(
        name="chunk",
        run=run_chunk,
        seeds=lambda: map(zlib.decompress, _bodies()),
        declared=(ValueError,),
        words=(*JSON_WORDS, b"c\x00\x00\x00\x00\x00\x00\xf0\x7f", b"\xff" * 8),
    ),
    Target(name="body", run=run_body, seeds=_bodies, declared=(ValueError,)),
)
