"""The doctor against real servers on loopback and real folders; judging alone is in test_doctor_judging.py."""

import contextlib
import errno
import itertools
import os
import shutil
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import hostile_store
import pytest
import trustme
from engine_server import engines
from loopback import answering
from nvml_fixture import StandIn, nvml_library, nvml_state  # noqa: F401 (fixtures)
from paths import TESTS
from waiting import free_port

from agent.config.files import load_plan
from agent.config.load import LoadedConfig, load, parse_config
from agent.config.peer import Peer
from agent.doctor.check_result import CheckLevel, CheckResult, exit_code, format_text
from agent.doctor.run import run_checks
from agent.doctor.targets import check_clock, check_page, check_plan_match, check_signals, read_targets
from agent.errors import ConfigError
from agent.history.store import HistoryStore
from agent.scrape.scrapers import Target
from rules.plan.schema import parse_plan

PLAN = load_plan(TESTS / "plans" / "cpu-small.yaml")
PAGE = (TESTS / "pages" / "steady_after_load.prom").read_bytes()
METRICS = "text/plain; version=0.0.4"


@contextlib.contextmanager
def serving(
    body: bytes = PAGE,
    *,
    status: int = 200,
    content_type: str = METRICS,
    ahead_seconds: float = 0.0,
    certificate: trustme.LeafCert | None = None,
    heard: list[str] | None = None,
    server: str = "engine",
) -> Iterator[int]:
    """A server that answers all with one page, at its own time. `heard` gets the head of each request."""

    def act(handler: hostile_store.Handler) -> None:
        date = formatdate(round(time.time() + ahead_seconds), usegmt=True)
        handler.version_string = lambda: server  # type: ignore[method-assign]
        handler.date_time_string = lambda timestamp=None: date  # type: ignore[method-assign]
        # Before the answer, after which the test looks.
        if heard is not None:
            heard.append(str(handler.headers))
        hostile_store.give(handler, body, status, content_type)

    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
    with hostile_store.serving(context) as made:
        made.act = act
        yield made.port


def loaded(folder: Path, *targets: Mapping[str, Any], **keys: Any) -> LoadedConfig:
    """A configuration without GPUs, as this machine's would make the tests differ from machine to machine."""
    listen = f"127.0.0.1:{free_port()}"
    # That the forecasting process starts is tested in test_doctor_forecast.py: it takes a second.
    off = {"enabled": False}
    data = {"targets": list(targets), "gpus": {"source": "none"}, "web": {"listen": listen}, "forecast": off, **keys}
    config = parse_config(data, folder=folder, plan=PLAN)
    return LoadedConfig(path=folder / "sizewatch.yaml", config=config, plan=PLAN, warnings=())


def target(port: int, scheme: str = "http", **keys: Any) -> dict[str, Any]:
    url = f"{scheme}://127.0.0.1:{port}/metrics"
    return {"url": url, "tier": "cpu-small", "replica": "r", "scrape_timeout": "15s", **keys}


def about(findings: tuple[CheckResult, ...], check: str) -> list[CheckResult]:
    return [finding for finding in findings if finding.check == check]


def only(findings: tuple[CheckResult, ...], check: str) -> CheckResult:
    (found,) = about(findings, check)
    return found


def assert_line(found: tuple[CheckResult, ...], check: str, level: CheckLevel, begin: str) -> None:
    line = only(found, check)
    assert line.level is level
    assert line.text.startswith(begin)


def test_sound_installation_has_no_failing_line(tmp_path: Path) -> None:
    with serving() as port:
        own = {"cpu-small": {"TtftSloBurn": {"page_fast_burn": 20.0}}}
        found = run_checks(loaded(tmp_path, target(port), thresholds=own))
    assert exit_code(found) == 0
    assert about(found, "config")[1].text.endswith("catalogue's: TtftSloBurn page_fast_burn 20 (catalogue 14.4)")
    checks = [finding.check.removesuffix(" cpu-small/r") for finding in found if finding.level is CheckLevel.OK]
    lines = "process config config plan target engine clock plan gpus data_dir history web forecast report"
    assert checks == lines.split()
    assert "53.7 kB in" in only(found, "target cpu-small/r").text
    assert "vLLM v1 (after 0.29.0 by its names): 35 of 47 signals" in only(found, "engine cpu-small/r").text
    assert only(found, "plan cpu-small/r").text == "as planned: model small-llama, KV cache auto"
    assert list(tmp_path.iterdir()) == []


def test_two_workers_are_two_replicas(tmp_path: Path) -> None:
    with engines(2) as (sidecar, router):
        sidecar.pages = ((TESTS / "cases" / "04-sidecar-two-workers" / "page.prom").read_bytes(),)
        router.pages = ((TESTS / "cases" / "01-router" / "page.prom").read_bytes(),)
        found = run_checks(loaded(tmp_path, target(sidecar.port), target(router.port, replica="x")))
    for address in ("127.0.0.1:8001", "127.0.0.1:8002"):
        said = only(found, f"target cpu-small/r/{address}")
        assert said.level is CheckLevel.OK
        assert said.text.endswith("; the page holds 2 engines by their label worker_addr, this is a replica")
        assert "SGLang srt" in about(found, f"engine cpu-small/r/{address}")[0].text
    assert_line(found, "target cpu-small/x", CheckLevel.FAIL, "not_one_engine: a router's page")


def test_address_alone_is_checked() -> None:
    with serving() as port:
        peer = Peer(url=f"http://127.0.0.1:{port}/metrics")
        (page,) = read_targets([Target(tier="", replica=f"127.0.0.1:{port}", pool="mixed", peer=peer)], time.time)
    checks = (check_page, check_signals, check_clock, check_plan_match)
    levels = [[line.level for line in check(page)] for check in checks]
    assert [CheckLevel.OK in lines for lines in levels] == [True, True, True, False]
    assert not any(CheckLevel.FAIL in lines for lines in levels)


HTML, JSON = "text/html", "application/json"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"status": 404}, "http_status: {url} answered 404: is the path right?"),
        ({"status": 401}, "auth: {url} answered 401"),
        ({"status": 302}, "redirect: {url} redirects"),
        ({"body": b"<html>", "content_type": HTML}, "content_type: {url} is not a page of metrics"),
        ({"body": b"[]", "content_type": JSON}, "content_type: {url} is not a page of metrics"),
        ({"body": b"up 1\n"}, "inconsistent: no page of an engine that sizewatch reads (Dynamo frontend, "),
        ({"body": PAGE[:-3]}, "cut_off: "),
        ({"body": b"x 1\ny\n"}, "syntax: "),
    ],
)
def test_target_without_a_page_fails(tmp_path: Path, result: dict[str, Any], text: str) -> None:
    with serving(**result) as port:
        found = run_checks(loaded(tmp_path, target(port)))
        failing = only(found, "target cpu-small/r")
        assert failing.level is CheckLevel.FAIL
        assert failing.text.startswith(text.format(url=f"http://127.0.0.1:{port}/metrics"))
        assert "sizewatch inspect URL" in failing.advice
    assert exit_code(found) == 1
    assert about(found, "engine cpu-small/r") == []


def test_page_near_its_limit_is_a_warning(tmp_path: Path) -> None:
    with serving() as port:
        found = run_checks(loaded(tmp_path, target(port, max_page_bytes=60_000)))
    warning = about(found, "target cpu-small/r")[1]
    assert (warning.level, "nears max_page_bytes (60000)" in warning.text) == (CheckLevel.WARN, True)


@pytest.mark.parametrize(("ahead", "side"), [(3600.0, "3600 s ahead of"), (-3600.0, "3600 s behind")])
def test_differing_clock_is_named_with_its_side(tmp_path: Path, ahead: float, side: str) -> None:
    with serving(ahead_seconds=ahead) as port:
        warning = only(run_checks(loaded(tmp_path, target(port))), "clock cpu-small/r")
    assert warning.level is CheckLevel.WARN
    # What is sure is up to a second less than what is so.
    sides = (side, side.replace("3600", "3599"))
    assert warning.text in {f"the target's clock is {told} this machine's" for told in sides}


def test_gpus_are_read_through_nvml(tmp_path: Path, nvml: StandIn) -> None:
    first, _ = nvml.add_gpu(), nvml.add_gpu()
    nvml.set({"1.samples": None, "1.util": None})
    found = run_checks(loaded(tmp_path, gpus={"source": "nvml"}))
    assert only(found, "gpus").text == "2 read through nvml"
    assert only(found, "gpu 0").text == f"NVIDIA H100 80GB HBM3, {first}, 2 processes seen"
    assert only(found, "gpu 1").text.endswith("not given: gpu_busy_seconds, gpu_busy_covered_seconds")
    assert nvml.opened() == 0


def test_configured_gpu_is_compared_with_the_plan(tmp_path: Path, nvml: StandIn) -> None:
    nvml.add_gpu()
    nvml.add_gpu()
    gpu = {"product": "H100 80GB HBM3", "per_replica": 1}
    tier = {"model": "small-llama", "engine": "vllm", "gpu": gpu, "slo": {"ttft_p99_seconds": 2}}
    plan = parse_plan({"schema": 1, "tiers": {"cpu-small": tier}})
    with serving() as port:
        found = run_checks(replace(loaded(tmp_path, target(port, gpus=["1"]), gpus={"source": "nvml"}), plan=plan))
    assert only(found, "plan cpu-small/r").text.endswith("1 x H100 80GB HBM3")


DCGM_PAGE = b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",modelName="NVIDIA L40S",Hostname="n1"} 41\n'
MIG_PAGE, AMD_PAGE = (
    (TESTS / "gpu_exporter_pages" / f"made-{name}.prom").read_bytes() for name in ("dcgm-mig", "amd-1.5-mi300x")
)


@pytest.mark.parametrize(
    ("source", "page", "title", "count", "gpu", "first"),
    [
        ("dcgm", DCGM_PAGE, "dcgm-exporter", "1", 0, "NVIDIA L40S, GPU-a, 0 processes seen; not given: "),
        ("dcgm", MIG_PAGE, "dcgm-exporter", "3", "GPU-5f3c/1", "NVIDIA H100 80GB HBM3 MIG 3g.40gb, GPU-5f3c/1, "),
        ("amd", AMD_PAGE, "AMD device-metrics-exporter", "2", 0, "AMD Instinct MI300X OAM, 692501000010, 2 "),
    ],
)
def test_gpus_are_read_through_exporters(
    tmp_path: Path, source: str, page: bytes, title: str, count: str, gpu: object, first: str
) -> None:
    def read(port: int) -> tuple[CheckResult, ...]:
        gpus = {"source": source, source: {"url": f"http://127.0.0.1:{port}/metrics"}}
        return run_checks(loaded(tmp_path, gpus=gpus))

    with serving(page) as port:
        found = read(port)
    assert_line(read(free_port()), "gpus", CheckLevel.FAIL, f"{title}: connect: ")
    assert only(found, "gpus").text == f"{count} read through {source}"
    assert about(found, f"gpu {gpu}")[0].text.startswith(first)


def test_balanced_exporters_are_no_machine(tmp_path: Path) -> None:
    pages = itertools.cycle((DCGM_PAGE, DCGM_PAGE.replace(b"GPU-a", b"GPU-b").replace(b"n1", b"n2")))
    said = MagicMock(__getitem__=lambda *_: b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n" + next(pages))
    with answering(said) as url:
        found = run_checks(loaded(tmp_path, gpus={"source": "dcgm", "dcgm": {"url": f"{url}/metrics"}}))
    assert_line(found, "gpus", CheckLevel.WARN, "2 read, of n1 or n2")


def test_wrong_configuration_fails_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "sizewatch.yaml"
    shutil.copy(TESTS / "configs" / "ten-mistakes.yaml", path)
    shutil.copy(TESTS / "plans" / "cpu-small.yaml", tmp_path / "plan.yaml")
    with pytest.raises(ConfigError) as caught:
        load(path)
    found = run_checks(caught.value)
    assert exit_code(found) == 1
    assert [finding.text for finding in about(found, "config")] == list(caught.value.problems)


def test_warnings_have_their_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "sizewatch.yaml"
    port = free_port()
    path.write_text(f"web: {{listen: '0.0.0.0:{port}'}}\ngpus: {{source: none}}\n", encoding="utf-8")
    found = run_checks(load(path))
    warnings = [finding for finding in found if finding.level is CheckLevel.WARN]
    assert [finding.check for finding in warnings] == ["config", "config", "plan"]
    assert warnings[0].text == f"{path}: targets: is empty; nothing is watched"
    assert f"{path}: web.listen: 0.0.0.0:{port} is open to other machines" in warnings[1].text
    assert exit_code(found) == 0


def test_data_folder_is_tried(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    def folder(name: str) -> CheckResult:
        return only(run_checks(loaded(tmp_path, data_dir=name)), "data_dir")

    assert f"{tmp_path}/new/deeper: will be made in {tmp_path}: writable, " in folder("new/deeper").text
    wrong = folder("file")
    assert (wrong.level, wrong.text) == (CheckLevel.FAIL, f"{tmp_path}/file: Not a directory")
    node = only(run_checks(loaded(tmp_path, role="node")), "data_dir")
    assert node.text == "no history is kept (role node)"


def test_the_history_is_opened(tmp_path: Path) -> None:
    with HistoryStore(tmp_path / "history.db"):
        (good,) = about(run_checks(loaded(tmp_path, data_dir=".")), "history")
    assert good.text == f"{tmp_path}/history.db: can be read and written"
    (tmp_path / "history.db").unlink()
    (tmp_path / "history.db").write_bytes(b"no database at all" * 100)
    (tmp_path / "history.db").chmod(0o600)
    (bad,) = about(run_checks(loaded(tmp_path, data_dir=".")), "history")
    assert (bad.level, "is no history (file is not a database)" in bad.text) == (CheckLevel.FAIL, True)


def test_locked_folder_is_no_first_run(tmp_path: Path) -> None:
    """A name that is too long fails for root too, as a locked folder does for others."""
    results = run_checks(loaded(tmp_path, target(9, bearer_token_file="x" * 300), data_dir="x" * 300))
    (history,) = about(results, "history")
    assert (history.level, history.text.endswith("File name too long")) == (CheckLevel.FAIL, True)
    assert any("bearer_token_file" in result.text and "File name too long" in result.text for result in results)


def web(folder: Path, listen: str, **keys: Any) -> list[CheckResult]:
    return about(run_checks(loaded(folder, web={"listen": listen, **keys})), "web")


def test_foreign_address_fails(tmp_path: Path) -> None:
    begin = f"192.0.2.1:19095: {os.strerror(errno.EADDRNOTAVAIL)}"
    assert_line(tuple(web(tmp_path, "192.0.2.1:19095")), "web", CheckLevel.FAIL, begin)


def test_web_files_are_tried(tmp_path: Path) -> None:
    ca, other = trustme.CA(), trustme.CA()
    leaf = ca.issue_cert("localhost")
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    other.issue_cert("localhost").private_key_pem.write_to_path(str(tmp_path / "other.pem"))
    listen = f"127.0.0.1:{free_port()}"
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: cert.pem, key_file: other.pem}")
    pair, free = web(tmp_path, listen, config_file="web.yml")
    assert (pair.level, free.level) == (CheckLevel.FAIL, CheckLevel.OK)
    assert pair.text.startswith(f"web.config_file: {tmp_path}/cert.pem and {tmp_path}/other.pem cannot be used: ")
    token, _ = web(tmp_path, listen, bearer_token_file="no-token")
    assert token.text == f"web.bearer_token_file: {tmp_path}/no-token cannot be read: No such file or directory"


def test_text_has_a_line_a_finding() -> None:
    good = CheckResult(check="web", level=CheckLevel.OK, text="free")
    bad = CheckResult(check="data_dir", level=CheckLevel.FAIL, text="full", advice="free space")
    assert format_text((good, bad)) == (
        "fail  data_dir  full\n"
        "                -> free space\n"
        "ok    web       free\n"
        "not sound: 1 failing line (data_dir), 0 warnings"
    )
    assert format_text((good,)).endswith("\nsound")
