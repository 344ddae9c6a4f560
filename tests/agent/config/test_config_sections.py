"""Sections of the configuration: each key is taken, and each mistake is named with its place."""

import math
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemon_runs import configuration, write
from golden_text import check_golden, print_fields
from paths import ROOT

from agent.config.config import Config
from agent.config.load import parse_config, weaknesses
from agent.errors import ConfigError
from agent.forecasting.responses import sundays
from forecast.series.binned import Series
from forecast.series.calendar import recurrence

CANARY = "c4n4ry"
TARGET = {"url": "http://127.0.0.1:8000/metrics", "tier": "cpu-small"}
OTHER = {"url": "http://127.0.0.1:8001/metrics", "tier": "cpu-small"}
ONE = {"targets": [TARGET]}
PASSWORD = {"username": "u", "password_file": "p"}
MANAGER = {"url": "http://127.0.0.1:9093"}
TWO_MANAGERS = [MANAGER, {"url": "http://127.0.0.1:9093/"}]
URL = "http://127.0.0.1:9090"
SALE: dict[str, Any] = {"name": "sale", "start": "2026-11-27", "duration": "1d", "factor": 3.0}
FLEET: dict[str, Any] = {"role": "fleet", "store": {"url": "http://x"}}
SECRET_URL = f"json://user:{CANARY}@example.com"


def config(section: str, **keys: Any) -> Config:
    """The configuration of a section with these keys; the empty section is the whole."""
    if section == "":
        return parse_config(keys, environment={})
    if section == "store":
        return parse_config({"role": "fleet", "store": {"url": URL, **keys}}, folder=Path("/etc"))
    if section == "targets[0]":
        return parse_config({"targets": [{**TARGET, **keys}]}, environment={})
    if section == "thresholds.cpu-small":
        return parse_config({**ONE, "thresholds": {"cpu-small": keys}}, environment={})
    return parse_config({**ONE, section: keys}, folder=Path("/etc"))


def event(**keys: object) -> dict[str, Any]:
    return {"events": [{**SALE, **keys}]}


def repeated(rule: object) -> dict[str, Any]:
    return event(recurrence=rule)


def posts(**keys: Any) -> dict[str, Any]:
    return {"path": "posts", "alertmanagers": [MANAGER], **keys}


def deliver(**keys: Any) -> dict[str, Any]:
    return {"deliver": [{"name": "a", **keys}]}


NO_ADDRESS = "url: must be an http:// or https:// address such as http://127.0.0.1:8000/metrics, without ${...}"
NO_GPUS = "gpus: must be auto or a list of GPUs, by UUID or index (`nvidia-smi -L` lists both)"
NO_LISTEN = "listen: must be HOST:PORT such as 127.0.0.1:19095, [::1]:19095 or :19095, with port 1 to 65535"
QUOTED = "this is text: a number has no quotes, and 1e-3 is 1.0e-3 in YAML)"
NO_ZONE = "zone: is no time zone; write Europe/Berlin or UTC"
NO_COUNTRY = "country: must be a country by ISO 3166 such as 'NO', or a part such as DE-BY"
NO_TIME = "events[0].start: must be a valid datetime or date"
MINUTES = "bin: must be whole minutes that an hour holds a whole number of, such as 2m, 5m or 15m, not"
NO_DURATION = "must be a number with its unit, such as 500ms, 15s, 5m, 1h, 7d or 13w, not"
NO_RULE = "events[0].recurrence: must be a recurrence rule such as FREQ=WEEKLY"
NO_RFC_RULE = "events[0].recurrence: is no recurrence rule of RFC 5545 in local time"
NO_CLOCK = 'at: must be a time of the day such as "07:00", in quotes'
NO_DELIVERY = "deliver[0]: needs url_file or url_env"
NO_HEADER = '["[key]"]: must be the name of a header that no other key sets'
NO_BASE = "url: must be the store's base address, without a query"
NO_SELECTOR = "tiers.t.selector: must be label matchers"
NO_LABEL = "is no name of a label, or one that alerts have already (alertname,"
NO_ENGINE = "engine: is not an engine whose pages can be read; did you mean vllm?"

MISTAKES: dict[str, tuple[tuple[dict[str, Any], str], ...]] = {
    "forecast": (
        ({"zone": "Europe/Berln"}, NO_ZONE),
        ({"zone": "../passwd"}, NO_ZONE),
        ({"zone": 1}, "zone: must be a valid string"),
        ({"zone": ""}, "zone: must not be empty"),
        ({"country": "Germany"}, NO_COUNTRY),
        ({"country": False}, NO_COUNTRY),
        ({"country": "XQ"}, "country: XQ is no country of ISO 3166"),
        ({"country": "UK"}, "country: UK is no country of ISO 3166 (the United Kingdom is GB)"),
        ({"bin": "7m"}, f"{MINUTES} 7m"),
        ({"bin": "150s"}, f"{MINUTES} 150s"),
        ({"bin": "30s"}, "bin: must be from 2m to 1h, not 30s"),
        ({"bin": 300}, f"bin: {NO_DURATION} '300'"),
        ({"quantile": 99}, "quantile: must be at most 0.999"),
        ({"quantile": 0.3}, "quantile: must be at least 0.5"),
        ({"scale_down_hold": "2d"}, "scale_down_hold: must be from 0ms to 1d, not 2d"),
        ({"late_request_cost": 0.1}, "late_request_cost: must be a mapping of keys to values"),
        ({"late_request_cost": {"cpu-small": 0}}, "late_request_cost.cpu-small: must be greater than 0"),
        ({"late_request_cost": {"cpu-smal": 1.0}}, "late_request_cost.cpu-smal: is not a tier of targets or plan;"),
        ({"events": SALE}, "events: must be a list"),
        ({"events": [{"name": "sale"}]}, "events[0].start: is missing"),
        ({"events": [SALE, SALE]}, "events[1].name: is that of events[0]; a time that comes again is one event with a"),
        (event(starts="x"), "events[0].starts: is not a key; did you mean start?"),
        (event(name=""), "events[0].name: must not be empty"),
        (event(start="27.11.2026"), NO_TIME),
        (event(start="2026-02-30"), NO_TIME),
        (event(start=20261127), "events[0].start: must be at least 2000-01-01"),
        (event(start="9999-12-31"), "events[0].start: must be less than 2200-01-01"),
        (event(start="2026-11-27T08:00Z"), "events[0].start: must not have timezone info"),
        (event(duration="30s"), "events[0].duration: must be from 1m to 92d, not 30s"),
        (event(factor=-1), "events[0].factor: must be at least 0"),
        (event(factor="3x"), "events[0].factor: must be a valid number"),
        (repeated("every friday"), NO_RULE),
        (repeated("FREQ=HOURLY"), NO_RULE),
        (repeated("FREQ=WEEKLY;BYDAYS=MO"), f"{NO_RFC_RULE} (unknown parameter 'BYDAYS')"),
        (repeated("FREQ=WEEKLY;BYDAY=XX"), f"{NO_RFC_RULE} (invalid 'BYDAY': XX)"),
        (repeated("FREQ=DAILY;UNTIL=20261231T000000Z"), f"{NO_RFC_RULE} (RRULE UNTIL values"),
        (repeated("FREQ=DAILY;INTERVAL=0"), NO_RULE),
        (repeated("FREQ=DAILY;INTERVAL=-1"), NO_RULE),
        (repeated("FREQ=DAILY;COUNT"), NO_RULE),
        (repeated("INTERVAL=2"), NO_RULE),
        (repeated("FREQ=DAILY;FREQ=DAILY"), NO_RULE),
        (repeated("FREQ=DAILY;COUNT=2;UNTIL=20261231"), NO_RULE),
        (repeated(7), "events[0].recurrence: must be a valid string"),
        (repeated("FREQ=YEARLY;BYMONTH=13"), "events[0].recurrence: comes 0 times a day"),
        (repeated("FREQ=DAILY;BYHOUR=8,9;BYMINUTE=0,1,2,3,4,5,6,7,8,9,10,11,12"), "events[0].recurrence: comes 26"),
    ),
    "alerting": (
        ({"path": "posts"}, "alertmanagers: is missing; path posts needs the url of at least one Alertmanager"),
        ({"alertmanagers": [MANAGER]}, "alertmanagers: is given, but path: rules posts nothing; write path: posts"),
        (posts(alertmanagers=TWO_MANAGERS), "alertmanagers[1]: has the url of alerting.alertmanagers[0]; each Alert"),
        (posts(external_labels={"tier": "x"}), f"external_labels.tier: {NO_LABEL}"),
        (posts(external_labels={"my-label": "x"}), f"external_labels.my-label: {NO_LABEL}"),
        ({"receiver": {}}, "receiver.bearer_token_file: is missing"),
        ({"resend": "10m"}, "resend: must be from"),
        (posts(alertmanagers=[{**MANAGER, "tls": {}}]), "alertmanagers[0].tls: is given, but the url begins with http"),
    ),
    "report": (
        ({"at": 420}, NO_CLOCK),
        ({"at": "7:00"}, NO_CLOCK),
        ({"weekday": "Monday"}, "weekday: must be 'monday'"),
        ({"since": "30m"}, "since: must be from 1h to 91d"),
        ({"keep": 0}, "keep"),
        ({"zone": "Mars"}, "zone: is no time zone"),
        ({"deliver": SECRET_URL}, "deliver: must be a list"),
        ({"deliver": [SECRET_URL]}, "deliver[0]: must be a mapping"),
        (deliver(url=SECRET_URL), "deliver[0].url: is not a key"),
        (deliver(url_env=SECRET_URL), "deliver[0].url_env: String should match"),
        (deliver(name=SECRET_URL, url_env="A"), "deliver[0].name: String should match"),
        (deliver(), NO_DELIVERY),
        (deliver(url_env="A", url_file="f"), NO_DELIVERY),
        (deliver(url_env="A", **{"with": ["plan", "pdf"]}), "deliver[0].with[1]: must be 'report', 'markdown',"),
        ({"deliver": [{"name": "a", "url_env": "A"}] * 2}, "deliver[1].name: is that of deliver[0]"),
    ),
    "store": (
        ({"url": f"http://u:{CANARY}@x"}, "url: must hold no user or password"),
        ({"url": "http://[::1"}, "url: must be an http:// or https:// address"),
        ({"url": "http://x/?a=b"}, NO_BASE),
        ({"url": "http://x/api/v1/query"}, f"{NO_BASE} and without /api/v1"),
        ({"basic_auth": {"username": "u"}}, "basic_auth.password_file: is missing"),
        ({"tls": {"ca_file": "c"}}, "tls: is given, but the url begins with http://"),
        ({"token": CANARY}, "token"),
        ({"org_id": ""}, "org_id"),
        ({"org_id": "a\nb"}, "org_id: must be printable ASCII"),
        ({"header_files": {"authorization": "f"}}, f"header_files.authorization{NO_HEADER}"),
        ({"header_files": {"X Y": "f"}}, f'header_files["X Y"]{NO_HEADER}'),
        ({"most_samples": 10}, "most_samples: must be at least 1000"),
        ({"partial_answers": "maybe"}, "partial_answers: must be 'refuse' or 'take'"),
        ({"timeout": "0s"}, "timeout: must be from"),
    ),
    "targets[0]": (
        ({"tier": 3}, "tier: must be a valid string"),
        ({"pool": "prefil"}, "pool: must be 'mixed', 'prefill' or 'decode'"),
        ({"engine": "vlm"}, NO_ENGINE),
        ({"scrape_timeout": "20s"}, "scrape_timeout: must not exceed scrape_interval (15s)"),
        ({"url": "http://x:99999/"}, NO_ADDRESS),
        *(({"url": url}, NO_ADDRESS) for url in ("http:///metrics", "http://h:many/", "//h/", "h:8000/metrics")),
        ({"url": "http://x/a b"}, NO_ADDRESS),
        ({"url": "http://h:0/"}, "url: must have a port from 1 to 65535"),
        ({"max_page_bytes": 10}, "max_page_bytes: must be at least 1024"),
        ({"max_page_bytes": "16M"}, "max_page_bytes: must be a valid integer"),
        ({"gpus": []}, NO_GPUS),
        ({"gpus": [True]}, NO_GPUS),
        ({"gpus": ["GPU 1"]}, NO_GPUS),
        ({"gpus": [1, 1]}, "gpus: GPU 1 already belongs to targets[0]; one GPU has one replica"),
        ({"gpus": [0], "pid_file": "x"}, "pid_file: has no use beside a list of gpus; it is for gpus: auto"),
        ({"bearer_token_file": "t", "basic_auth": PASSWORD}, "basic_auth: is given beside bearer_token_file; a"),
        ({"basic_auth": {"username": "u"}}, "basic_auth.password_file: is missing"),
        ({"tls": {"ca_file": "x"}}, "tls: is given, but the url begins with http://; write https://"),
        ({"url": "https://x/", "tls": {"key_file": "x"}}, "tls.key_file: needs cert_file"),
        ({"bearer_token_file": "${NOPE}/x"}, "bearer_token_file: names the environment variable NOPE, which is not"),
    ),
    "gpus": (
        ({"source": "dcgm"}, "dcgm: is missing; source dcgm needs the url of a dcgm-exporter"),
        ({"dcgm": {"url": "http://x/"}}, "source: must be dcgm where gpus.dcgm is given"),
        ({"source": "amd"}, "amd: is missing; source amd needs the url of an AMD device-metrics-exporter"),
        (
            {"source": "amd", "amd": {"url": "http://x/"}, "dcgm": {"url": "http://y/"}},
            "source: must be dcgm where gpu",
        ),
        ({"source": "amd", "amd": {"url": "http://x/", "tls": {}}}, "amd.tls: is given, but the url begins with http:"),
    ),
    "web": (
        *(({"listen": listen}, NO_LISTEN) for listen in ("19095", ":0", ":65536", "a:b:1", "::1:80", "x\0:1")),
        ({"tls": {"cert_file": "x"}}, "tls: is not a key"),
    ),
    "thresholds.cpu-small": (
        ({"KvEviction": {"colour": 1}}, "KvEviction.colour: is not a threshold of KvEviction; known: warning,"),
        ({"KvEviction": {"warning": 0.3}}, "KvEviction: warning (0.3) must not be above critical (0.2)"),
        ({"Guardrails": {"high": 0.7}}, "Guardrails: low (0.8) must not be above high (0.7)"),
        ({"SpeculationAcceptanceLow": {"below": 0.4}}, "SpeculationAcceptanceLow: critical_below (0.5) must not be"),
        ({"TtftDivergence": {"factor": 0}}, "TtftDivergence.factor: must be above 0"),
        ({"QueueAlwaysEmpty": {"fullest_hours": 5}}, "QueueAlwaysEmpty.fullest_hours: is a share: must be at most"),
        ({"GpuMemoryHigh": {"above": 92}}, "GpuMemoryHigh.above: is a ratio: 92 % is written 0.92"),
        ({"TtftSloBurn": {"page_fast_burn": math.inf}}, "TtftSloBurn.page_fast_burn: must be a finite number"),
        ({"KvEviction": {"warning": -1}}, "KvEviction.warning: must be at least 0"),
        ({"KvEviction": {"warning": "5 %"}}, "KvEviction.warning: must be a valid number"),
        ({"KvEviction": {"warning": "1e-3"}}, f"KvEviction.warning: must be a valid number ({QUOTED}"),
    ),
    "": (
        ({"scrape_interval": "2m"}, "scrape_interval: must be from 500ms to 1m, not 2m"),
        ({"alertmanagers": []}, "alertmanagers: is not a key; did you mean alerting.alertmanagers?"),
        ({"store": {"password_file": "x"}}, "store.password_file: is not a key; did you mean store.basic_auth.pass"),
        ({"scrape_interval": True}, f"scrape_interval: {NO_DURATION} 'True'"),
        ({"scrape_timeout": "20s"}, "scrape_timeout: must not exceed scrape_interval (15s)"),
        ({"data_dir": "${HOME}"}, "data_dir: holds ${...}, which is replaced in the keys that end in _file only"),
        ({"data_dir": "a\0"}, "data_dir: must be the name of a file or folder"),
        ({"targets": [{**TARGET, "gpus": [0]}, {**OTHER, "gpus": [1, 0]}]}, "targets[1].gpus: GPU 0 already"),
        ({"targets": [TARGET, TARGET]}, "targets[1]: is replica 127.0.0.1:8000 of tier cpu-small, as targets[0]"),
        ({**ONE, "thresholds": {"cpu-smal": {}}}, "thresholds.cpu-smal: is not a tier of targets or plan; did you"),
        ({**ONE, "thresholds": {"KvEviction": {}}}, "thresholds.KvEviction: is a rule: write {TIER: {KvEviction:"),
        ({"role": "fleet"}, "store: is missing"),
        ({**FLEET, "targets": [TARGET]}, "targets: role fleet"),
        ({"role": "node", "fleet": {"cycle": "60s"}}, "fleet: is for role fleet"),
        ({"role": "node", "report": {"keep": 3}}, "report: is given, but role node writes none"),
        ({"role": "standalone", "tier_verdicts": False}, "tier_verdicts: may be false in role node only"),
        ({**FLEET, "tiers": {"t": {"from": "engines"}}}, "tiers.t.selector: is missing"),
        ({**FLEET, "tiers": {"t": {"selector": 'job="a"} or up{x="'}}}, NO_SELECTOR),
        ({**FLEET, "tiers": {"t": {"engine": "vlm"}}}, f"tiers.t.{NO_ENGINE}"),
    ),
}


@pytest.mark.parametrize(
    ("section", "keys", "expected"), [(name, *row) for name, rows in MISTAKES.items() for row in rows]
)
def test_mistake_has_place_and_no_secret(section: str, keys: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(section, **keys)
    problems = caught.value.problems
    place = f"{section}.{expected}" if section else expected
    assert len([problem for problem in problems if problem.startswith(place)]) == 1, problems
    assert all(problem.startswith(section) for problem in problems)
    assert CANARY not in "".join(problems)


EVERY_KEY: dict[str, dict[str, Any]] = {
    "forecast": {
        "enabled": False,
        "zone": "Europe/Berlin",
        "country": "DE-BY",
        "events": [SALE, {**SALE, "name": "invoices", "recurrence": "rrule:freq=monthly;bymonthday=1"}],
        "bin": "15m",
        "quantile": 0.95,
        "late_request_cost": {"cpu-small": 0.02},
        "scale_down_hold": "0s",
    },
    "alerting": {
        "path": "posts",
        "resend": "30s",
        "external_labels": {"cluster": "eu-1"},
        "external_url": "https://sizewatch.example/",
        "runbook_url": "https://wiki.example/runbooks",
        "alertmanagers": [
            {"url": "https://am.example/prefix/", "timeout": "5s", "tls": {"ca_file": "ca.pem"}},
            {**MANAGER, "bearer_token_file": "token"},
        ],
    },
    "store": {
        "url": "https://mimir.example/prometheus",
        "timeout": "5s",
        "most_samples": 5000,
        "max_answer_bytes": 100_000,
        "partial_answers": "take",
        "basic_auth": {"username": "me", "password_file": "password"},
        "tls": {"ca_file": "ca.pem", "cert_file": "c.pem", "key_file": "k.pem", "server_name": "mimir.example"},
        "org_id": "a|b",
        "header_files": {"X-Api-Key": "key"},
    },
}


def test_every_key_reads_as_the_golden() -> None:
    """Every key of a section as it is taken, and what a configuration without keys is."""
    plain = config("store").model_dump(mode="json")
    given = {name: config(name, **keys).model_dump(mode="json")[name] for name, keys in EVERY_KEY.items()}
    texts = [f"{name}, every key\n{print_fields(fields)}" for name, fields in given.items()]
    check_golden(__file__, "sections.txt", "\n\n".join([f"defaults\n{print_fields(plain)}", *texts]))
    assert config("store", bearer_token_file="token").store.bearer_token_file == "/etc/token"
    (_, monthly) = config("forecast", **EVERY_KEY["forecast"]).forecast.events
    assert recurrence(monthly).between(datetime(2027, 1, 2), datetime(2027, 2, 2)) == [datetime(2027, 2, 1)]
    settings = config("alerting", **EVERY_KEY["alerting"]).alerting.settings()
    assert (settings.resend_seconds, settings.external_labels) == (30, {"cluster": "eu-1"})
    assert (settings.external_url, settings.runbooks) == ("https://sizewatch.example/", "https://wiki.example/runbooks")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-11-27", datetime(2026, 11, 27)),
        ("2026-11-27T08:30", datetime(2026, 11, 27, 8, 30)),
        ("2026-11-27 08:30:15", datetime(2026, 11, 27, 8, 30, 15)),
        (date(2026, 11, 27), datetime(2026, 11, 27)),
        (datetime(2026, 11, 27, 8), datetime(2026, 11, 27, 8)),
    ],
)
def test_start_is_a_day_or_a_time(given: object, expected: datetime) -> None:
    assert config("forecast", **event(start=given)).forecast.events[0].start == expected


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=8,20",
        "FREQ=MONTHLY;BYDAY=-1FR;COUNT=12",
        "FREQ=YEARLY;BYMONTH=11;BYDAY=4TH",
        "FREQ=MONTHLY;BYMONTHDAY=-1,15;INTERVAL=2",
        "FREQ=YEARLY;BYWEEKNO=20;WKST=SU;UNTIL=20301231T235959",
        "FREQ=DAILY;BYSETPOS=1;BYHOUR=6;BYMINUTE=30;BYSECOND=0",
        "FREQ=YEARLY;BYYEARDAY=100",
    ],
)
def test_accepted_rules_are_rules_to_the_forecast(rule: str) -> None:
    (accepted,) = config("forecast", **repeated(rule)).forecast.events
    assert recurrence(accepted).after(datetime(2026, 11, 27)) is not None


def test_holidays_follow_zone_and_country() -> None:
    christmas_eve = datetime(2026, 12, 24, 22, tzinfo=UTC).timestamp()
    hours = Series(start=christmas_eve, bin_seconds=3600.0, values=np.zeros(1), zone="Europe/Berlin")
    assert set(sundays("DE", hours, 25)) == {date(2026, 12, 25)}
    assert sundays(None, hours, 25) == {}
    with pytest.raises(ConfigError, match=r"^forecast\.country: DE has no part 'XX' with holidays .*; known: BB, BE"):
        sundays("DE-XX", hours, 1)


def test_alerting_is_loaded_on_demand(tmp_path: Path) -> None:
    path = write(tmp_path, configuration([], role="node"))
    script = (
        "import sys; from pathlib import Path; from agent.daemon.assembly import assemble; from agent.config.load import load\n"
        "import agent.daemon.daemon\n"
        f"assemble(load(Path({str(path)!r}))).close(0.0)\n"
        "print([m for m in sys.modules if m.startswith('agent.alerting')])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        ({}, ""),
        ({"bearer_token_file": "t"}, ""),
        ({"url": URL, "bearer_token_file": "t"}, ""),
        ({"url": "http://store.example", "bearer_token_file": "t"}, "without TLS"),
        ({"url": "http://store.example", "header_files": {"X-Key": "k"}}, "without TLS"),
        ({"tls": {"insecure_skip_verify": True}}, "use ca_file"),
    ],
)
def test_weak_store_is_a_warning(store: dict[str, Any], expected: str) -> None:
    warnings = weaknesses(config("store", **{"url": "https://store.example", **store}), None)
    assert len(warnings) == bool(expected)
    assert expected in "".join(warnings)


@pytest.mark.parametrize(("matchers", "count"), [("", 1), (',namespace=~"a|b"', 1), (',namespace="a"', 0)])
def test_pods_in_two_namespaces_are_warned_of(matchers: str, count: int) -> None:
    tier = {"from": "engines", "selector": f'job="vllm"{matchers}', "replica_label": "pod"}
    warnings = weaknesses(config("", **FLEET, tiers={"t": tier}), None)
    assert len([text for text in warnings if text.startswith("tiers.t.selector: pods of one name")]) == count


def test_report_can_be_off_or_elsewhere() -> None:
    assert config("report").report_folder == Path("/etc/sizewatch-data/reports")
    assert config("report", enabled=False).report_folder is None
    assert config("report", directory="there").report_folder == Path("/etc/there")
    assert config("", role="node", data_dir="/d").report_folder is None
    assert config("", role="node", report={"enabled": False}).report_folder is None
