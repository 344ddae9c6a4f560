"""Fuzz targets that read files people write or tools leave: configuration, plan, benchmark results, traces, history."""

from __future__ import annotations

import gzip
import json
import math
import tempfile
import zlib
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import yaml
from fuzz_target import Target, bounded_words
from paths import TESTS

from agent.benchmarks.formats import read_results
from agent.config import load
from agent.config.files import load_plan
from agent.forecasting.csv_series import read_trace
from agent.forecasting.history_input import no_forecast
from agent.forecasting.messages import ForecastFailure, answer_line, parse_request, parse_response, question_line
from agent.history.chunks import ChunkRow, decode_chunk, encode_chunk
from agent.history.codec import decode_window, encode_window
from rules.telemetry.window_record import from_record, to_record

HERE = TESTS
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


ENVIRONMENT = {"NAME": "n", "NODE_NAME": "gpu-1", "POD_NAME": "p", "POD_NAMESPACE": "s"}


@cache
def _plan() -> bytes:
    return json.dumps(yaml.safe_load((HERE / "plans" / "cpu-small.yaml").read_bytes()), default=str).encode()


def run_config(data: bytes) -> None:
    """Beside it stands the plan that the sound ones name."""

    def read(path: Path) -> load.LoadedConfig:
        (path.parent / "plan.json").write_bytes(_plan())
        return load.load(path, environment=ENVIRONMENT)

    loaded = _written(data, "c.yaml", read)
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
    for zone in ("UTC", "Europe/Berlin"):
        trace = _written(data, "t.csv", partial(read_trace, zone=zone))
        bounded_words(trace.notes)  # type: ignore[attr-defined]


def run_exchange(data: bytes) -> None:
    try:
        parse_request(data)
    except ValueError:
        parse_response(data)


def run_record(data: bytes) -> None:
    """A row's body, packed as the history packs it: what is read, comes back."""
    window = decode_window(zlib.compress(data))
    again = from_record(json.loads(json.dumps(to_record(window))))
    assert again == window or "nan" in repr(window), "a record does not come back"
    if all(map(math.isfinite, (window.start, window.end))) and "nan" not in repr(window):
        assert decode_window(encode_window(window)) == window


def run_chunk(data: bytes) -> None:
    rows = decode_chunk(BASE, zlib.compress(data, 1))
    for row in rows:
        assert isinstance(row.start, int)
    if rows and "nan" not in repr(rows):
        assert decode_chunk(BASE, encode_chunk(BASE, rows)) == rows, "a chunk does not come back"


def run_body(data: bytes) -> None:
    """A body as the file holds it, damaged."""
    decode_chunk(BASE, data)


def _plans() -> Iterator[bytes]:
    for path in sorted((HERE / "plans").glob("*.yaml")):
        yield b"\x00" + path.read_bytes()
    small = yaml.safe_load((HERE / "plans" / "cpu-small.yaml").read_text(encoding="utf-8"))
    yield b"\x01" + json.dumps(small, default=str).encode()


FULL_CONFIG = b"""\
role: standalone
plan: plan.json
scrape_interval: 15s
data_dir: /tmp/x
targets:
  - {url: "http://127.0.0.1:8000/metrics", tier: cpu-small, replica: r, bearer_token_file: "/run/${NAME}", engine: vllm, gpus: [0]}
  - url: https://[::1]:8001/metrics
    tier: cpu-small
    basic_auth: {username: u, password_file: /run/p}
    tls: {ca_file: ca, cert_file: c, key_file: k, server_name: s, insecure_skip_verify: true}
    max_page_bytes: 1048576
    scrape_timeout: 5s
    pid_file: /run/pid
    engine_version: "1"
gpus: {source: dcgm, dcgm: {url: "http://127.0.0.1:9400/metrics"}}
web:
  listen: ":9095"
  tls: {cert_file: c, key_file: k, client_ca_file: a, min_version: "1.3"}
  bearer_token_file: t
  basic_auth_users_file: u
  hosts: [monitor.example]
alerting:
  path: posts
  alertmanagers: [{url: "http://127.0.0.1:9093", timeout: 5s}]
  resend: 2m
  external_labels: {cluster: a}
  external_url: https://sizewatch.example
  runbook_url: https://runbooks.example/a
  receiver: {bearer_token_file: t}
forecast:
  zone: Europe/Berlin
  country: DE-BY
  events:
    - {name: a, start: 2026-11-27T08:00, duration: 6h, factor: 3, recurrence: FREQ=MONTHLY;BYMONTHDAY=1}
    - {name: b, start: 2026-12-24, duration: 1d, factor: 0}
  bin: 5m
  quantile: 0.95
  scale_down_hold: 30m
report:
  weekday: friday
  at: "06:30"
  zone: UTC
  since: 14d
  keep: 5
  deliver: [{name: team, url_file: f, with: [picture, plan]}, {name: other, url_env: REPORT_URL}]
thresholds: {cpu-small: {TtftDivergence: {factor: 1.5}}}
logging: {level: debug, format: json}
"""

NODE_CONFIG = b"""\
role: node
discovery:
  kubernetes:
    node: gpu-1
    namespaces: [llm]
    selector: app=vllm
    ports: [metrics, 8000]
    tiers: [{tier: cpu-small, labels: {app: vllm}, namespaces: [llm]}]
    keep: 5m
    api: {url: "https://127.0.0.1:6443", bearer_token_file: t, ca_file: c}
tier_verdicts: false
gpus: {source: none}
"""

FLEET_CONFIG = b"""\
role: fleet
plan: plan.json
store:
  url: http://mimir:8080/prometheus
  timeout: 20s
  most_samples: 100000
  partial_answers: take
  org_id: a|b
  header_files: {X-Key: k}
  basic_auth: {username: u, password_file: p}
tiers:
  cpu-small:
    from: engines
    selector: 'job="vllm"'
    replica_label: pod
    pool_label: pool
    engine: vllm
    gpus: {exporter: dcgm, selector: 'job="dcgm"', replica_label: exported_pod}
fleet: {turn: 60s, delay: 30s, each_up_to: 8, back_fill: 1d, lease: {name: l, namespace: n, identity: i}}
"""


def _configs() -> Iterator[bytes]:
    yield from (FULL_CONFIG, NODE_CONFIG, FLEET_CONFIG)
    yield json.dumps(yaml.safe_load(FLEET_CONFIG)).encode()
    # A section at a time: what is wrong in one place is then not told beside what is wrong in ten others.
    whole = yaml.safe_load(FULL_CONFIG)
    for name in whole:
        if name not in ("role", "targets", "data_dir"):
            yield yaml.safe_dump({"targets": whole["targets"][:1], name: whole[name]}).encode()
    yield from (path.read_bytes() for path in sorted((HERE / "configs").glob("*.yaml")))
    for path in sorted((HERE.parent / "deploy").glob("**/config.yaml")):
        for one in yaml.safe_load_all(path.read_bytes()):
            yield from (text.replace("plan.yaml", "plan.json").encode() for text in (one.get("data") or {}).values())


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
    # What people and tools write: milliseconds, offsets, no zone over both changes of the clock, a longer file, packed.
    yield "".join(("timestamp,requests\n", *(f"{1000 * (BASE + 60 * n)},{n}\n" for n in range(30)))).encode()
    yield "".join(("time,requests\n", *(f"2026-03-01 {n:02d}:30:00.500+02:00,{n}.5\n" for n in range(24)))).encode()
    for day in ("2026-03-29", "2026-10-25"):
        yield "".join(("timestamp,requests\n", *(f"{day}T{n:02d}:00,{n}\n" for n in range(24)))).encode()
        hours = (0, 1, 2, 2, 3, 4) if day.endswith("25") else (0, 1, 3, 4)
        yield "".join(
            ("timestamp,requests\n", *(f"{day} {n:02d}:{m:02d},{n}\n" for n in hours for m in (0, 30)))
        ).encode()
    yield "".join(("\ufefftimestamp,requests\r\n", *(f"2026-03-{1 + n:02d},{n}\r\n" for n in range(30)))).encode()
    yield gzip.compress(f"timestamp,requests\n{rows}".encode(), mtime=0)
    yield gzip.compress(b"timestamp,requests\n" + b"\n" * 1_000_000, mtime=0)
    yield gzip.compress(b"timestamp,requests\n" + b"9" * 4_000_000, mtime=0)


def _windows() -> Iterator[object]:
    import history_samples

    yield from (history_samples.window(minute) for minute in range(3))
    yield history_samples.window(3, covered=0.0)
    yield history_samples.recorded_minutes("cascade_fast")[0]


def _records() -> Iterator[bytes]:
    yield from (json.dumps(to_record(window)).encode() for window in _windows())  # type: ignore[arg-type]


def _bodies() -> Iterator[bytes]:
    rows = [ChunkRow(BASE + 60 * p, p, "", w) for p, w in enumerate(_windows())]  # type: ignore[arg-type]
    yield encode_chunk(BASE, rows)
    yield encode_chunk(BASE, rows[:1])


def _exchanges() -> Iterator[bytes]:
    from forecast_samples import question

    yield question_line(question(replica_hour=10.0, currency="USD"))
    yield answer_line(no_forecast(question(), "no demand of this tier has been kept yet"))
    yield answer_line(ForecastFailure(tier="h100", trouble="ZeroDivisionError"))


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

_CONFIG = (
    *(
        "agent.config.load",
        "agent.config.forecast",
        "agent.config.discovery",
        "agent.config.files",
        "agent.config.weaknesses",
    ),
    *(
        "agent.config.store",
        "agent.config.targets",
        "agent.config.alerting",
        "agent.config.config",
        "agent.config.values",
        "agent.config.report",
    ),
    *("agent.config.values", "agent.config.files"),
)
_PLAN = ("agent.config.files", "rules.plan.schema", "rules.plan.validation")
_BENCHMARK = tuple(
    f"agent.benchmarks.{one}"
    for one in ("aiperf", "formats", "guidellm", "inference_perf", "points", "typed_fields", "vllm_bench")
)
_TRACE = ("agent.forecasting.csv_file", "agent.forecasting.csv_series", "agent.forecasting.timestamps")
_CHUNK = ("agent.history.chunks", "agent.history.codec", "agent.history.codec")

TARGETS = (
    Target(name="config", run=run_config, seeds=_configs, words=YAML_WORDS, place="/", reads=_CONFIG),
    Target(name="plan", run=run_plan, seeds=_plans, words=(*YAML_WORDS, *JSON_WORDS), place="/p.", reads=_PLAN),
    Target(name="benchmark", run=run_benchmark, seeds=_benchmarks, words=JSON_WORDS, place="b.json", reads=_BENCHMARK),
    Target(name="trace", run=run_trace, seeds=_traces, words=CSV_WORDS, place="t.csv", reads=_TRACE),
    Target(
        name="exchange",
        run=run_exchange,
        seeds=_exchanges,
        declared=(ValueError,),
        told=False,
        words=JSON_WORDS,
        reads=("agent.forecasting.messages",),
    ),
    Target(
        name="record",
        run=run_record,
        seeds=_records,
        declared=(ValueError,),
        words=JSON_WORDS,
        reads=("agent.history.codec", "rules.telemetry.window_record"),
    ),
    Target(
        name="chunk",
        run=run_chunk,
        seeds=lambda: map(zlib.decompress, _bodies()),
        declared=(ValueError,),
        words=(*JSON_WORDS, b"c\x00\x00\x00\x00\x00\x00\xf0\x7f", b"\xff" * 8),
        reads=_CHUNK,
    ),
    Target(name="body", run=run_body, seeds=_bodies, declared=(ValueError,), reads=_CHUNK),
)
