"""Files as a weapon: what is written, who may read it, traps laid there, and configurations that lie about or hold secrets."""

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from daemon_runs import configuration, process, running, write
from engine_server import engines
from history_samples import booking
from page_checks import message_trouble
from waiting import CEILING_SECONDS, wait_for

from agent.cli.main import main
from agent.config.load import find, load, parse_config, weaknesses
from agent.errors import ConfigError
from agent.files import LOCK_FILE, DataDir, open_new_file
from agent.history.schema import HistoryError
from agent.history.store import HistoryStore
from agent.reporting import storage
from agent.reporting.storage import STATE_FILE, ReportState, write_state


@pytest.fixture(name="careless")
def _careless() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def modes(place: Path) -> dict[str, int]:
    found = {place.name: place.stat().st_mode}
    found |= {str(one.relative_to(place)): one.lstat().st_mode for one in place.rglob("*")}
    return {name: stat.S_IMODE(mode) for name, mode in found.items() if not stat.S_ISLNK(mode)}


@pytest.mark.usefixtures("careless")
def test_careless_umask_leaves_files_private(tmp_path: Path) -> None:
    with engines(1) as served:
        path = write(tmp_path, configuration(served, data_dir=str(tmp_path / "data")))
        with running(path, cycles=4):
            during = modes(tmp_path / "data")
    write_state(tmp_path / "data" / STATE_FILE, ReportState(begun_at=1.0))
    storage.publish(tmp_path / "data" / "reports", "2026-11-23", {"report.html": b"x", "report.json": b"{}"}, keep=26)
    found = during | modes(tmp_path / "data")
    assert {"history.db", LOCK_FILE, STATE_FILE, "reports/2026-11-23/report.json"} <= found.keys()
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o027} == {}
    private = {name: mode for name, mode in found.items() if not name.startswith("reports")}
    assert {name: oct(mode) for name, mode in private.items() if mode & 0o077} == {}


@pytest.mark.usefixtures("careless")
def test_report_is_writable_by_owner_alone(tmp_path: Path) -> None:
    path = write(tmp_path, configuration([], data_dir=str(tmp_path / "data")))
    (tmp_path / "data").mkdir(mode=0o700)
    with HistoryStore(tmp_path / "data" / "history.db") as store:
        store.book((booking(0),))
    with process("report", "-c", str(path), "--out", str(tmp_path / "out")) as made:
        out, err = made.communicate(timeout=CEILING_SECONDS)
    assert (tmp_path / "out" / "report.json").exists(), out + err
    files = {name: mode for name, mode in modes(tmp_path / "out").items() if name != "out"}
    assert {name: oct(mode) for name, mode in files.items() if mode & 0o022} == {}


BESIDE = tuple(f"history.db-{suffix}" for suffix in ("wal", "shm", "journal"))
TRAPS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "state": (f".{STATE_FILE}.new", lambda place: write_state(place / STATE_FILE, ReportState(begun_at=1.0))),
    "lock": (LOCK_FILE, lambda place: DataDir(place, place / "sizewatch.yaml").close()),
    "file": ("file", lambda place: open_new_file(place / "file", 0o600).close()),
    "history": ("history.db", lambda place: HistoryStore(place / "history.db").close()),
    **{name: (name, lambda place: HistoryStore(place / "history.db").close()) for name in BESIDE},
}
"""Where a link lies, and what writes there."""


@pytest.mark.parametrize("what", TRAPS)
@pytest.mark.parametrize("there", [True, False])
def test_link_in_data_folder_is_not_followed(tmp_path: Path, what: str, there: bool) -> None:
    """Whoever may write where we write would have a file of their choice made or changed with our rights."""
    name, write_there = TRAPS[what]
    victim, place = tmp_path / "elsewhere" / "victim", tmp_path / "data"
    victim.parent.mkdir()
    if there:
        HistoryStore(victim).close()
    before = victim.read_bytes() if there else b""
    place.mkdir()
    (place / name).symlink_to(victim)
    # SQLite replaces a link beside its file.
    with contextlib.suppress(HistoryError) if what in BESIDE else pytest.raises((OSError, ConfigError, HistoryError)):
        write_there(place)
    assert (victim.read_bytes() if there else b"") == before
    assert sorted(one.name for one in victim.parent.iterdir()) == (["victim"] if there else [])


def test_report_links_are_replaced_not_followed(tmp_path: Path) -> None:
    victim, place = tmp_path / "victim", tmp_path / "reports"
    victim.mkdir()
    (victim / "report.html").write_text("precious")
    place.mkdir()
    for name in (".new-2026-11-23", "2026-11-23"):
        (place / name).symlink_to(victim)
    storage.publish(place, "2026-11-23", {"report.html": b"ours"}, keep=1)
    assert (victim / "report.html").read_text() == "precious"
    assert storage.read_report_file(place, "2026-11-23", "report.html") == b"ours"


def test_crash_leaves_no_core_file(tmp_path: Path) -> None:
    with engines(1) as served:
        path = write(tmp_path, configuration(served, data_dir=str(tmp_path / "data"), web={"listen": "127.0.0.1:0"}))
        with process("run", "-c", str(path)) as daemon:
            limits = Path(f"/proc/{daemon.pid}/limits")

            def core() -> list[str]:
                (line,) = [one for one in limits.read_text().splitlines() if one.startswith("Max core file size")]
                return line.split()[4:6]

            assert wait_for(lambda: core() == ["0", "0"]), core()
            assert daemon.poll() is None
            os.kill(daemon.pid, 15)
            daemon.communicate(timeout=CEILING_SECONDS)


TARGET = {"url": "http://10.0.0.7:8000/metrics", "tier": "t"}


def warned(tmp_path: Path, **keys: Any) -> tuple[str, ...]:
    data = {"targets": [], "gpus": {"source": "none"}, **keys}
    return weaknesses(parse_config(data, folder=tmp_path, environment={}), None)


@pytest.fixture(name="here")
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sizewatch.yaml").write_text("targets: []\n")
    (tmp_path / "sizewatch.yaml").chmod(0o644)
    return tmp_path


def test_own_configuration_is_found_in_folder(here: Path) -> None:
    assert find(None) == Path("sizewatch.yaml")


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's files take root")
def test_foreign_configuration_needs_its_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says which of our files is sent as a token, and where to."""
    os.chown(here / "sizewatch.yaml", 65534, 65534)
    with pytest.raises(ConfigError, match="another user's"):
        find(None)
    assert main(["check"]) == 2
    assert "name it with -c" in capsys.readouterr().err
    assert find("sizewatch.yaml") == Path("sizewatch.yaml")


def test_nor_is_one_that_everybody_may_write(here: Path) -> None:
    (here / "sizewatch.yaml").chmod(0o666)
    with pytest.raises(ConfigError, match="everybody may write it"):
        find(None)
    assert load(find("sizewatch.yaml")).config.targets == ()


CLEAR = "credentials go to another machine without TLS; use https://"
LOGIN = {"basic_auth": {"username": "ada", "password_file": "p"}}


def test_credentials_over_plain_http_are_named(tmp_path: Path) -> None:
    token = {"bearer_token_file": "token"}
    for way in (token, LOGIN):
        assert f"targets[0].url: {CLEAR}" in warned(tmp_path, targets=[{**TARGET, **way}])
        dcgm = {"source": "dcgm", "dcgm": {"url": "http://node:9400/metrics", **way}}
        assert f"gpus.dcgm.url: {CLEAR}" in warned(tmp_path, gpus=dcgm)
        posts = {"path": "posts", "alertmanagers": [{"url": "http://alerts:9093", **way}]}
        assert f"alerting.alertmanagers[0].url: {CLEAR}" in warned(tmp_path, alerting=posts)
    api = {"kubernetes": {"node": "n", "api": {"url": "http://10.0.0.1:8001", **token}}}
    assert f"discovery.kubernetes.api.url: {CLEAR}" in warned(tmp_path, discovery=api)


@pytest.mark.parametrize(
    "url", ["https://10.0.0.7/metrics", "http://127.0.0.1:8000/metrics", "http://[::1]/", "http://localhost/"]
)
def test_tls_and_loopback_are_no_weakness(tmp_path: Path, url: str) -> None:
    found = warned(tmp_path, targets=[{**TARGET, "url": url, **LOGIN}])
    assert [one for one in found if CLEAR in one] == []
    assert [one for one in warned(tmp_path, targets=[TARGET]) if CLEAR in one] == []


STANDALONE = """\
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
  listen: ":19095"
  probe_listen: ":9096"
  bearer_token_file: t
  config_file: u
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
  deliver: [{name: team, url_file: f, with: [report, plan]}, {name: other, url_env: REPORT_URL}]
thresholds: {cpu-small: {TtftDivergence: {factor: 1.5}}}
logging: {level: debug, format: json}
"""

FLEET = """\
role: fleet
store: {url: "http://127.0.0.1:9090", bearer_token_file: t}
"""
NODE = """\
role: node
discovery: {kubernetes: {node: n, api: {url: "http://127.0.0.1:8001", bearer_token_file: t}}}
"""
DOCUMENTS = tuple(map(yaml.safe_load, (STANDALONE, FLEET, NODE)))
CANARY = "hunter2-c4n4ry-" + "x" * 2_000
VALUES: tuple[Any, ...] = (
    *(CANARY, [CANARY], {"a": CANARY}, {CANARY: CANARY}, [[CANARY]], f"${{{CANARY}", f"{CANARY}\n"),
    *(
        f"http://u:{CANARY}@h/",
        f"http://{CANARY} /x",
        f"http://h:{CANARY}/",
        f"http://*.{CANARY}/",
        f"ftp://{CANARY}/x",
    ),
)


def leaves(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from leaves(value, (*path, key))


def with_value(document: Any, path: tuple[Any, ...], value: object) -> Any:
    if not path:
        return value
    changed = dict(document) if isinstance(document, dict) else list(document)
    changed[path[0]] = with_value(changed[path[0]], path[1:], value)
    return changed


def explain_refusal(document: Any, file: Path) -> tuple[str, ...]:
    file.write_text(json.dumps(document, default=str), encoding="utf-8")
    try:
        load(file, environment={})
    except ConfigError as refused:
        return refused.problems
    return ()


@pytest.mark.parametrize(
    ("document", "path"),
    [pytest.param(one, path, id=str(path)) for one in DOCUMENTS for path in sorted(leaves(one), key=str)],
)
def test_pasted_secret_is_in_no_message(document: Any, path: tuple[Any, ...], tmp_path: Path) -> None:
    holds_secret = "deliver" in path or str(path[-1]).endswith(("url", "_file", "_env"))
    refusals = [explain_refusal(with_value(document, path, value), tmp_path / "c.yaml") for value in VALUES]
    assert sum(map(bool, refusals)) >= 4
    for problems in refusals:
        assert message_trouble(problems) == ""
        # A mapping's own keys are named as keys, which no secret is.
        told = [problem for problem in problems if "is not a key" not in problem]
        assert (CANARY[:9] if holds_secret else CANARY) not in "".join(told)
