"""The doctor beside a running daemon: what its page tells is wrong with it, a line each."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from daemon_runs import configuration, running, write
from engine_server import answers_500, engines
from test_run import about, loaded, serving
from waiting import free_port, wait_for

from agent.config.load import load, plan_versions
from agent.doctor.check_result import CheckLevel, CheckResult
from agent.doctor.daemon import MOST_SHOWN, WRONG, PortProbe, check_daemon
from agent.doctor.run import run_checks
from agent.version import VERSION
from exporters.metrics import names

NOW = 1_800_000_000.0


def told(folder: Path, *lines: str) -> list[CheckResult]:
    return list(check_daemon(PortProbe(page="\n".join(lines)), loaded(folder), NOW))


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.metric.name)
def test_each_sign_of_trouble_has_a_line_with_its_labels_and_what_to_do(wrong: object, tmp_path: Path) -> None:
    assert wrong in WRONG
    (row,) = [one for one in WRONG if one is wrong]
    assert row.metric in names.ALL
    labels = ",".join(f'{name}="the-{name}"' for name in row.metric.labels)
    series = f"{row.metric.name}{{{labels}}}" if labels else row.metric.name
    good, bad = ("1", "0") if row.is_wrong(0.0) else ("0", "3")
    (line,) = told(tmp_path, f"# TYPE {row.metric.name} gauge", f"{series} {bad}")
    assert (line.check, line.level, line.advice) == ("daemon", row.level, row.advice)
    assert line.text == row.text.format(value=float(bad), **{name: f"the-{name}" for name in row.metric.labels})
    (line,) = told(tmp_path, f"{series} {good}")
    assert line.level is CheckLevel.OK


def test_a_daemon_that_judges_another_plan_than_that_on_disk_is_told(tmp_path: Path) -> None:
    page = 'sizewatch_plan_info{{tier="cpu-small",plan_version="{}",model="m",engine="vllm",product="cpu"}} 1'
    on_disk = plan_versions(loaded(tmp_path))["cpu-small"]
    (line,) = told(tmp_path, page.format("0123456789ab"))
    assert line.level is CheckLevel.WARN
    assert line.text == f"judges cpu-small by plan version 0123456789ab; the plan on disk is {on_disk}"
    assert told(tmp_path, page.format(on_disk))[0].level is CheckLevel.OK


def test_of_many_of_one_kind_some_are_named_and_the_others_counted(tmp_path: Path) -> None:
    several = [f'sizewatch_target_up{{tier="t",pool="mixed",replica="r{n}"}} 0' for n in range(20)]
    found = told(tmp_path, *several)
    assert len(found) == MOST_SHOWN + 1
    assert found[0].text == "has no page of t/r0 that it could use"
    assert found[-1].text == "and 15 more of these"


def test_a_daemon_that_stands_still_and_one_of_another_version_are_named(tmp_path: Path) -> None:
    still, other = told(
        tmp_path,
        f"sizewatch_last_turn_timestamp_seconds {NOW - 500}",
        'sizewatch_build_info{role="standalone",version="0.0.1"} 1',
    )
    assert (still.level, still.text) == (CheckLevel.FAIL, "its last turn ended 500 s ago: what it shows is old")
    assert (other.level, other.text) == (CheckLevel.WARN, f"is sizewatch 0.0.1, {VERSION} is installed here")
    assert told(tmp_path, f'sizewatch_build_info{{version="{VERSION}"}} 1')[0].level is CheckLevel.OK


def test_a_real_daemon_that_is_well_is_said_to_be_and_its_troubles_are_read_from_its_page(tmp_path: Path) -> None:
    with engines() as (engine,):
        path = write(
            tmp_path, {**configuration([engine]), "data_dir": "data", "web": {"listen": f"127.0.0.1:{free_port()}"}}
        )
        with running(path, web=lambda loaded: _as_configured(loaded)):
            assert [one.level for one in about(run_checks(load(path)), "daemon")] == [CheckLevel.OK]
            engine.act = answers_500
            (line,) = wait_for(
                lambda: [one for one in about(run_checks(load(path)), "daemon") if one.level is not CheckLevel.OK]
            )
            assert line.text == "has no page of cpu-small/r0 that it could use"


def _as_configured(loaded: object) -> object:

    return loaded.config.web  # type: ignore[attr-defined]


def test_a_token_is_sent_to_a_certificate_of_ours_and_never_in_the_clear(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("canary-of-sixteen-letters\n")
    leaf = trustme.CA().issue_cert("watch.example")
    leaf.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "web.pem"))
    page = b'sizewatch_build_info{version="0.0.1"} 1\n'
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: web.pem, key_file: web.pem}\n")
    for certificate, more, sent in ((leaf, {"config_file": "web.yml"}, True), (None, {}, False)):
        with serving(page, certificate=certificate, heard=(heard := [])) as port:
            keys = {"listen": f"127.0.0.1:{port}", "bearer_token_file": "token", **more}
            found = run_checks(loaded(tmp_path, web=keys))
        assert [one.text.partition(",")[0] for one in about(found, "daemon")] == ["is sizewatch 0.0.1"]
        assert ["canary" in head for head in heard] == [sent]
