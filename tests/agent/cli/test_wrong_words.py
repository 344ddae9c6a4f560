"""Questions that a command cannot answer: its exit code, one sentence on standard error, no traceback and no secret."""

import gzip
import shlex
from pathlib import Path

import pytest
import recorded
from forecast_traffic import week
from paths import TESTS
from report_samples import TIER
from test_forecast_commands import configured as forecast_config
from test_forecast_commands import written
from test_history_commands import configured, recent

from agent.cli import main
from agent.history.store import HistoryStore
from forecast.series.binned import Series

PLAN = TESTS / "plans" / "cpu-small.yaml"
CONFIG = TESTS / "configs" / "ten-mistakes.yaml"
RECORDING = recorded.folder("steady")
RESULT = TESTS / "bench" / "vllm-cpu" / "bench_c01.json"
ROUTER = TESTS / "cases" / "01-router" / "page.prom"

WHATIF = "whatif -c week/sizewatch.yaml"
PREWARM = "prewarm --history hours.csv --tier chat --usable-rps 0.01 --start 3m"
KEDA = f"{PREWARM} --format keda"
PUSH = "dashboards push --url https://127.0.0.1:9"
STORE = "replay --store http://127.0.0.1:1"
WORKLOAD = "plan workload -c quiet/sizewatch.yaml"
IMPORT = f"plan import {RESULT}"

ABSENT = "there is no such file"
NO_REPLICAS = "no number of replicas"
NO_RATE = "must be from 1e-09 to 1e+07"
NO_HISTORY = "`sizewatch run` makes it"
NO_DEMAND = "the history holds no 5 min of its demand from end to end yet"
NEITHER = "nor /etc/sizewatch/sizewatch.yaml; `sizewatch init` writes one, -c names another; `sizewatch doctor HOST"
BOTH = "--username and --password-file go together"

FILES = {
    "empty.prom": b"",
    "up.prom": b"up 1\n",
    "packed.prom": gzip.compress(b"up 1\n", mtime=0),
    "list.prom": b"[]",
    "iterations.prom": b'[{"iter": 154, "numActiveRequests": 1}]\n',
    "cut.json": b"{",
    "time.json": b'{"made_at": 1}',
    "new.json": b'{"schema": "urn:sizewatch:calibration:2"}',
    "bad.csv": b"timestamp,requests\n2026-01-01T00:00:00Z,1\n2026-01-01T00:05:00Z,-3\n",
    "token": b"glsa_0123456789",
    "two.csv": b"timestamp,requests\n2026-01-01T00:00:00Z,1\n2026-01-01T00:05:00Z,1\n",
}

QUESTIONS: tuple[tuple[str, int, str], ...] = (
    ("", 2, "Set up:"),
    ("plan", 2, "Check or show a sizing plan"),
    ("zzz", 2, "No such command 'zzz'."),
    ("chek", 2, "No such command 'chek'. Did you mean 'check'?"),
    ("'' --out", 2, "sizewatch: an argument is empty"),
    ("report --out ''", 2, "report: an argument is empty; is a variable of the shell not set?"),
    ("plan improt", 2, "No such command 'improt'. Did you mean 'import'?"),
    ("check --formt json", 2, "No such option '--formt'. Did you mean '--format'?"),
    ("check --format jsno", 2, "'jsno' is not one of 'text', 'json'."),
    ("check --since -3d", 2, "Error: "),
    ("init --tier a", 2, "No such option '--tier'."),
    ("init ftp://gpu-1:8000", 2, "must be an http:// or https:// address"),
    ("init 127.0.0.1:9", 3, "http://127.0.0.1:9/metrics: connection refused"),
    ("render --external-url https://sw.example/?a=b", 2, "alerting.external_url: must have no ? or #"),
    ("run --role cluster", 2, "'cluster' is not one of"),
    ("demo --port 65536", 2, "65536 is not in the range"),
    ("demo --speed nan", 2, "Error: "),
    ("doctor 127.0.0.1:9 -c quiet/sizewatch.yaml", 2, "give addresses, which need no configuration"),
    ("inspect", 2, "Missing argument"),
    ("replay x --step 0s", 2, "Error: "),
    ("forecast a.csv", 2, "extra argument (a.csv); write --history CSV or --config FILE"),
    # A file that is missing, or is another's.
    ("run", 2, NEITHER),
    ("backtest", 2, "no configuration"),
    ("run -c /nowhere/sizewatch.yaml", 2, f"/nowhere/sizewatch.yaml: {ABSENT}"),
    (f"run -c {PLAN}", 2, "cpu-small.yaml: schema: is not a key"),
    ("plan show /nowhere/plan.yaml", 2, f"{ABSENT}; `sizewatch init` or"),
    (f"plan show {PLAN} --tier other", 2, "has no tier other; it has cpu-small"),
    (f"plan check {CONFIG}", 2, "ten-mistakes.yaml: targets: is not a key"),
    (f"plan check {PLAN} --page {PLAN}", 2, "cpu-small.yaml: line 2 is not a line of an exposition page"),
    ("report -c none/sizewatch.yaml --out a/b/c", 2, NO_HISTORY),
    ("status -c empty.prom", 2, "empty.prom: file: must be a mapping of keys to values"),
    ("render --root /nowhere", 2, "holds no docs/"),
    ("status --url http://127.0.0.1:9 --bearer-token-file /none", 2, "bearer_token_file /none: No such file or"),
    # Commands that read a page.
    ("plan init http://127.0.0.1:1/metrics --tier 'a b'", 2, "--tier: at most 63 letters, digits, dots, _ and -"),
    ("inspect /nowhere.prom", 2, "/nowhere.prom: cannot be read: No such file or directory; an address"),
    (f"inspect {TESTS}", 2, f"{TESTS}: cannot be read: Is a directory\n"),
    ("inspect /dev/zero", 2, "/dev/zero: is larger than 16 MiB: is this a saved page?\n"),
    (f"inspect {ROUTER}", 2, "a router's page (the vLLM production-stack router): no engine"),
    ("inspect empty.prom", 2, "cut_off: empty.prom: the page is empty"),
    ("inspect up.prom", 2, "up.prom: no page of an engine that sizewatch reads"),
    ("inspect packed.prom", 2, "packed.prom is compressed, and not announced as such"),
    ("inspect list.prom", 2, "list.prom is not a page of metrics; is there a login"),
    ("inspect iterations.prom", 2, "return_perf_metrics: true"),
    ("inspect http://127.0.0.1:1/metrics", 2, "connection refused; is it up?"),
    ("inspect ftp://x/metrics", 2, "must be an http:// or https:// address"),
    ("inspect http://u:secret@127.0.0.1:1/", 2, "must hold no user or password"),
    ("inspect http://[::1/x", 2, "must be an http:// or https:// address"),
    ("inspect http://127.0.0.1:1/ --username me", 2, f"{BOTH}: give both"),
    # Commands that read a history.
    (f"{WHATIF} --instances 0", 2, "'0' is no number of replicas from 1 to 100,000"),
    (f"{WHATIF} --instances 99999999999", 2, NO_REPLICAS),
    (f"{WHATIF} --instances 2 --rps 0", 2, NO_RATE),
    (f"{WHATIF} --instances 2 --rps nan", 2, NO_RATE),
    (f"{WHATIF} --instances 2 --rps many", 2, "could not convert string to float"),
    (f"{WHATIF} --instances 2 --tier nope", 2, "there is no tier nope; there are t"),
    (f"{WHATIF} --instances 2+4", 3, "its replicas serve whole requests: give one number of them"),
    (WHATIF, 2, "--instances"),
    ("whatif -c pair/sizewatch.yaml --instances 3", 2, "say with --tier which one; there are t, u"),
    ("whatif -c pools/sizewatch.yaml --instances 3", 3, "t in the last 7d: it serves prefill and decode apart"),
    ("whatif -c pools/sizewatch.yaml --instances 1+2", 3, "the plan lacks `disaggregation`"),
    (f"{WORKLOAD} --top 0", 2, NO_RATE),
    (f"{WORKLOAD} --requests 0", 2, "0 is not in the range 1<=x<=100000"),
    (f"{WORKLOAD} --tier other", 2, "there is no tier other; there are t"),
    (WORKLOAD, 3, "no arrivals were seen, or the engine counts no requests"),
    ("plan calibration none.json none.json", 2, "none.json cannot be read"),
    ("plan calibration cut.json cut.json --out new", 2, "--tier and --out are of the history"),
    ("plan calibration cut.json cut.json", 2, "cut.json is no calibration file"),
    ("plan calibration time.json time.json", 2, "time.json is no calibration file: made_at"),
    ("plan calibration new.json new.json", 2, "new.json is no calibration file: schema"),
    ("plan calibration -c bare/sizewatch.yaml", 3, "t: not calibrated: its plan has no curve"),
    ("plan calibration -c week/sizewatch.yaml --out no/file", 2, "cannot be written: No such file or directory"),
    # Forecasts, of a trace or of a history.
    ("backtest --history nowhere.csv", 2, "No such file or directory"),
    ("backtest --history two.csv", 2, "has 2 of the 3 rows"),
    ("backtest --history bad.csv", 2, "bad.csv:3: "),
    ("forecast --history bad.csv", 2, "is no count"),
    ("backtest --history hours.csv --test-days 0", 2, "0 days cannot be tested"),
    ("backtest --history hours.csv --bin 7h", 2, "do not divide a day"),
    ("backtest --history hours.csv --bin 0s", 2, "Error: "),
    ("backtest --history hours.csv --horizons 2d", 2, "Error: "),
    ("backtest --history hours.csv --test-days 1 --horizons 15m --emit no/folder.csv", 2, "cannot be written"),
    ("backtest --history hours.csv --test-days 1 --horizons 15m --emit .", 2, "cannot be written: Is a directory"),
    ("backtest --history hours.csv", 3, "needs 18 days (4 to learn from), has 6.0: test at most 2"),
    ("backtest --history day.csv --horizons 24h", 3, "has 24 hours; horizons of 6 hours and more need 5 days"),
    ("forecast --history hour.csv", 3, "nothing is expected: no forecast yet"),
    ("forecast --history hours.csv -c country/sizewatch.yaml", 2, "forecast.country"),
    ("forecast -c empty/sizewatch.yaml --tier nobody", 2, "there is no tier nobody; there are cpu-small"),
    ("forecast -c empty/sizewatch.yaml --bin 90s", 2, "demand is kept by the minute"),
    ("forecast -c empty/sizewatch.yaml", 3, NO_DEMAND),
    ("prewarm -c empty/sizewatch.yaml", 3, "no demand of this tier has been kept yet"),
    ("prewarm -c empty/sizewatch.yaml --bin 5m", 2, "--bin is for --history"),
    ("prewarm --history hours.csv", 3, "--usable-rps"),
    ("prewarm --history hours.csv --usable-rps 1", 3, "how long a start takes is not known"),
    (f"{PREWARM} --usable-rps nan", 2, "must be from 1e-09 to 1e+09"),
    (f"{PREWARM} --start 2d", 2, "must be from 1ms to 1d"),
    (f"{PREWARM} --maximum 0", 2, "0 is not in the range x>=1"),
    (f"{PREWARM} --token-secret a", 2, "is no NAME/KEY"),
    (KEDA, 2, "say with --workload what is scaled"),
    (f"{KEDA} --workload chat", 2, "is no KIND/NAME"),
    (f"{KEDA} --workload Pod/chat", 2, "workload kind 'Pod' is not known here"),
    (f"{KEDA} --workload Deployment/Chat!", 2, "is no Kubernetes name"),
    (f"{KEDA} --workload Deployment/chat --prometheus ftp://x", 2, "is no address"),
    (
        "prewarm --history hours.csv --format keda --workload Deployment/chat",
        3,
        "no manifest: trace: no recommendation",
    ),
    # Results of benchmarks.
    (f"{IMPORT} --tier t", 2, "--tier says nothing without --into or -c"),
    (f"{IMPORT} -c none.yaml", 2, f"none.yaml: {ABSENT}"),
    (f"{IMPORT} --into none.yaml", 2, f"none.yaml: {ABSENT}"),
    (f"{IMPORT} --into {PLAN} --tier x", 2, "has no tier x; it has cpu-small"),
    (f"{IMPORT} --into {TESTS}/plans/ten-mistakes.yaml", 2, "ten-mistakes.yaml"),
    (f"{IMPORT} --measured engine_version", 2, "--measured "),
    (f"{IMPORT} --measured engine_version=", 2, "--measured "),
    (f"{IMPORT} --measured gpu=h100", 2, "--measured "),
    (f"{IMPORT} --measured tensor_parallel=two", 2, "--measured "),
    (f"{IMPORT} --measured tensor_parallel=-1", 2, "--measured tensor_parallel: must be at least 1"),
    (f"{IMPORT} --measured measured_on=today", 2, "--measured "),
    # Servers of others.
    (PUSH, 2, "--token-file: give it, or --username and --password-file instead"),
    (f"{PUSH} --username a", 2, BOTH),
    (f"{PUSH} --password-file a", 2, "--token-file: give it, or"),
    (f"{PUSH} --token-file /a --username a --password-file b", 2, "basic_auth: is given beside bearer_token"),
    (f"{PUSH} --token-file /a --client-key-file k", 2, "tls.key_file: needs cert_file"),
    (f"{PUSH} --token-file /none", 2, "auth: bearer_token_file /none: No such file or directory"),
    (f"{PUSH} --token-file two.csv", 2, "auth: bearer_token_file two.csv: "),
    (f"{PUSH} --token-file token", 2, "connect: https://127.0.0.1:9: connection refused"),
    (f"{PUSH} --token-file /none --url ftp://grafana.example", 2, "url: must be an http:// or https:// address"),
    (f"{PUSH} --token-file /none --url http://a:secret@b", 2, "url: must hold no user or password"),
    # Recordings and stores.
    ("replay", 2, "give a RECORDING, or a store: --store URL or -c FILE"),
    ("replay /nowhere", 2, "has no recording.yaml"),
    (f"replay {'x' * 300}", 2, "/recording.yaml: cannot be read: File name too long"),
    (f"doctor {'x' * 300}", 2, "cannot be read: File name too long"),
    (f"replay {PLAN} --plan {PLAN}", 2, "has no recording.yaml: is this the folder of a recording?"),
    (f"replay {RECORDING} --plan /nowhere.yaml", 2, ABSENT),
    (f"replay {RECORDING} --from -1h", 2, "is a recording: --store, -c and --from are for a store"),
    ("replay -c /nowhere.yaml --from -1h", 2, ABSENT),
    ("replay -c week/sizewatch.yaml --from -1h", 2, "store: is missing"),
    ("replay --store ftp://x --from -1h", 2, "url: "),
    (f"{STORE} -c /nowhere.yaml --from -1h", 2, "give a RECORDING, or a store"),
    (STORE, 2, "--from is missing"),
    (f"{STORE} --from -1h", 2, "there is no tier"),
    (f"{STORE} --from -1h --to -2h", 2, "--to must be after --from"),
    (f"{STORE} --from -99d", 2, "at most 91d after it"),
    (f"{STORE} --plan {PLAN} --from -1h", 3, "http://127.0.0.1:1: "),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configurations with a history that is full, empty or missing, and traces."""
    place = tmp_path_factory.mktemp("inputs")
    for name in ("week", "pair", "pools", "quiet", "empty", "none", "country", "bare"):
        (place / name).mkdir()
    configured(place / "week", recent(24))
    configured(place / "pair", recent(2), names=("t", "u"))
    configured(place / "pools", [], {**TIER, "pools": ["prefill", "decode"]}, pool="decode")
    configured(place / "quiet", [])
    configured(place / "bare", recent(24), {key: value for key, value in TIER.items() if key != "curve"})
    for name in ("empty", "none"):
        forecast_config(place / name)
    (place / "empty" / "data").mkdir()
    HistoryStore(place / "empty" / "data" / "history.db").close()
    forecast_config(place / "country", country="XX")
    written(place / "hours.csv", week(6))
    day = week(1, 600.0)
    written(place / "day.csv", day)
    written(place / "hour.csv", Series(start=day.start, bin_seconds=300.0, values=week(1).values[:12]))
    for name, content in FILES.items():
        (place / name).write_bytes(content)
    return place


@pytest.mark.parametrize(("words", "code", "sentence"), QUESTIONS)
def test_wrong_words_get_one_sentence(
    words: str,
    code: int,
    sentence: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    assert main.main(shlex.split(words)) == code
    out, err = capsys.readouterr()
    command = words.partition(" ")[0]
    assert sentence in (err or out)
    assert not out or (code == 3 and not err)
    assert not err or err.startswith((f"sizewatch {command}: ", "Usage: sizewatch", "sizewatch: "))
    assert "Traceback" not in err
    assert ":secret@" not in err
    assert sorted(folder.iterdir()) == before
