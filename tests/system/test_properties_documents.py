"""What files hold is not repeated in what is said of them, not ten thousand characters of it; and ways there and back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from page_checks import message_trouble

from agent.config import load as config
from agent.errors import ConfigError
from rules.engines.reader import compile_layout, is_mapped_name, snapshot
from rules.engines.registry import ENGINES

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

DOCUMENT = yaml.safe_load(FULL_CONFIG)
CANARY = "hunter2-c4n4ry-" + "x" * 10_000


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


@pytest.mark.parametrize("path", sorted(leaves(DOCUMENT), key=str), ids=str)
def test_configuration_values_are_not_repeated(path: tuple[Any, ...], tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    for value in (CANARY, [CANARY], {"a": CANARY}):
        file.write_text(yaml.safe_dump(with_value(DOCUMENT, path, value)), encoding="utf-8")
        with pytest.raises(ConfigError) as refused:
            config.load(file, environment={})
        assert message_trouble(refused.value.problems) == ""
        assert CANARY not in str(refused.value)


def test_nameless_series_is_no_zero() -> None:
    """Absence is never zero: a store's series without a name once made every family that its engine lacked one."""
    name = "vllm:num_requests_running"
    for engine in ENGINES:
        assert not is_mapped_name("", (engine,))
        page = snapshot(compile_layout([(name, {}), ("", {})], engine), [1.0, 7.0], 0.0)
        assert page == snapshot(compile_layout([(name, {})], engine), [1.0], 0.0)
