"""`sizewatch run` as a process of its own: signals, kill -9, a second one, and commands beside it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import hostile_store
import trustme
import yaml
from daemon_runs import PLAN, ask, configuration, process, results, running, write
from engine_server import Engine, answers_500, engines
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.history.store import HistoryStore

Process = subprocess.Popen[str]


@contextmanager
def daemon(folder: Path, served: list[Engine], **keys: Any) -> Iterator[tuple[Process, str]]:
    """`sizewatch run` after its first cycle, and its address."""
    port = free_port()
    path = write(folder, configuration(served, web={"listen": f"127.0.0.1:{port}"}, **keys))
    url = f"http://127.0.0.1:{port}/"
    with process("run", "-c", str(path)) as started:
        assert wait_for(lambda: results(url) or started.poll() is not None)
        yield started, url


def ended(started: Process) -> tuple[int, str, str]:
    """Exit code, standard output and error."""
    out, err = started.communicate(timeout=CEILING_SECONDS)
    return started.returncode, out, err


def run(*words: str) -> tuple[int, str, str]:
    with process(*words) as started:
        return ended(started)


def minutes(folder: Path) -> float:
    """Replica-seconds in the history."""
    with HistoryStore.open_reader(folder / "sizewatch-data" / "history.db") as reader:
        return sum(one.window.covered_seconds for one in reader.minutes("cpu-small", 0.0, 1e11))


def test_sigterm_ends_it_in_order_with_the_open_minute_booked_and_words_about_it(tmp_path: Path) -> None:
    with engines() as served, daemon(tmp_path, served) as (started, url):
        assert wait_for(lambda: len(served[0].asked) >= 3)
        started.send_signal(signal.SIGTERM)
        code, out, err = ended(started)
    assert (code, out) == (0, "")
    assert 'watching="1 target" interval_seconds=0.5 role=standalone' in err
    assert f"status_page={url}" in err
    assert "stopped cycles=" in err
    assert "Traceback" not in err
    assert not results(url)
    assert minutes(tmp_path) > 0.5


def test_ctrl_c_ends_it_the_same_way(tmp_path: Path) -> None:
    with engines() as served, daemon(tmp_path, served) as (started, _):
        started.send_signal(signal.SIGINT)
        code, _, err = ended(started)
    assert code == 0
    assert "Traceback" not in err


def test_sighup_reads_good_and_bad_configurations_and_it_goes_on(tmp_path: Path) -> None:
    with engines(2) as served, daemon(tmp_path, served[:1]) as (started, url):
        path = tmp_path / "sizewatch.yaml"
        good = path.read_text()
        path.write_text(good + "nonsense: 1\n")
        started.send_signal(signal.SIGHUP)
        assert wait_for(lambda: "nonsense" in str(json.loads(ask(url, "api/status"))["agent"]["config_trouble"]))
        path.write_text(good.replace("targets:\n", f"targets:\n- {{url: '{served[1].url}', tier: cpu-small}}\n"))
        for _ in range(20):
            started.send_signal(signal.SIGHUP)
        assert wait_for(lambda: len(served[1].asked) >= 2)
        agent = json.loads(ask(url, "api/status"))["agent"]
        assert agent["config_trouble"] is None
        assert agent["cycle_errors"] == 0
        started.send_signal(signal.SIGTERM)
        assert ended(started)[0] == 0


def test_open_findings_survive_a_sighup(tmp_path: Path) -> None:
    with engines(2) as served, daemon(tmp_path, served) as (started, url):

        def down() -> list[Any]:
            incidents = json.loads(ask(url, "api/status"))["incidents"]
            return [(one["id"], one["ended_at"]) for one in incidents if "TargetDown" in one["id"]]

        served[0].act = answers_500
        assert wait_for(down)
        before = down()
        path = tmp_path / "sizewatch.yaml"
        path.write_text(path.read_text() + "alerting: {external_url: 'http://sizewatch.example'}\n")
        started.send_signal(signal.SIGHUP)
        assert wait_for(lambda: "the configuration was read again" in str(json.loads(ask(url, "api/status"))))
        asked = len(served[1].asked)
        assert wait_for(lambda: len(served[1].asked) >= asked + 3)
        assert down() == before
        started.send_signal(signal.SIGTERM)
        assert "configuration reloaded" in ended(started)[2]


def test_a_pipe_in_place_of_the_plan_costs_no_cycle_and_no_stop(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_bytes(PLAN.read_bytes())
    with engines() as served, daemon(tmp_path, served, plan=str(plan)) as (started, url):
        plan.unlink()
        os.mkfifo(plan)
        started.send_signal(signal.SIGHUP)
        asked = len(served[0].asked)
        assert wait_for(lambda: len(served[0].asked) > asked + 2), "cycles go on"
        assert results(url)
        started.send_signal(signal.SIGTERM)
        code, _, err = ended(started)
    assert code == 0
    assert f"{plan}: is a pipe" in err
    assert "stopped cycles=" in err
    assert "Traceback" not in err


def test_a_mounted_certificate_that_is_renewed_is_served_without_a_signal(tmp_path: Path) -> None:
    """docs/install-kubernetes.md: a renewed Secret is in use within seconds of its mount."""

    def mount(authority: trustme.CA) -> None:
        made, fresh = authority.issue_cert("127.0.0.1"), tmp_path / f"..{time.monotonic_ns()}"
        fresh.mkdir()
        made.private_key_pem.write_to_path(fresh / "tls.key")
        made.cert_chain_pems[0].write_to_path(fresh / "tls.crt")
        (tmp_path / "..tmp").symlink_to(fresh.name)
        os.replace(tmp_path / "..tmp", tmp_path / "..data")

    def served_by(authority: trustme.CA) -> bool:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        try:
            with socket.create_connection(("127.0.0.1", port)) as plain:
                context.wrap_socket(plain, server_hostname="127.0.0.1").close()
        except OSError:
            return False
        return True

    old, new, port = trustme.CA(), trustme.CA(), free_port()
    mount(old)
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(Path("..data") / name)
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n")
    web = {"listen": f"127.0.0.1:{port}", "config_file": "web.yml"}
    path = write(tmp_path, configuration([], role="node", web=web))
    with process("run", "-c", str(path)) as started:
        assert wait_for(lambda: served_by(old) or started.poll() is not None)
        mount(new)
        assert wait_for(lambda: served_by(new))
        assert not served_by(old)
        started.send_signal(signal.SIGTERM)
        code, _, err = ended(started)
    assert code == 0
    assert "configuration reloaded" in err


def test_kill_9_while_scraping_leaves_a_history_that_is_whole_and_free(tmp_path: Path) -> None:
    with engines() as served:
        with running(write(tmp_path, configuration(served)), cycles=5):
            pass
        before = minutes(tmp_path)
        assert before > 0
        with daemon(tmp_path, served) as (started, url):
            beside = run("check", "-c", str(tmp_path / "sizewatch.yaml"))
            assert results(url)
            started.send_signal(signal.SIGKILL)
            assert ended(started)[0] == -signal.SIGKILL
        after = run("check", "-c", str(tmp_path / "sizewatch.yaml"))
        for code, out, err in (beside, after):
            assert (code, err) == (3, "")
            assert out.startswith("cpu-small: cannot be judged (")
        assert minutes(tmp_path) >= before
        with closing(sqlite3.connect(tmp_path / "sizewatch-data" / "history.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        with running(tmp_path / "sizewatch.yaml") as again:
            assert again.counts.cycle_errors == 0


def test_a_second_one_on_the_same_port_ends_with_2_and_the_first_works_on(tmp_path: Path) -> None:
    with engines() as served, running(write(tmp_path, configuration(served))) as first:
        assert first.web is not None
        other = tmp_path / "other"
        other.mkdir()
        path = write(other, configuration(served, web={"listen": f"127.0.0.1:{first.web.port}"}))
        code, out, err = run("run", "-c", str(path))
        assert (code, out) == (2, "")
        assert f"sizewatch run: web.listen: cannot listen on 127.0.0.1:{first.web.port}: address already in use" in err
        assert "Traceback" not in err
        cycles = first.counts.cycles
        assert wait_for(lambda: first.counts.cycles > cycles)


def test_a_second_one_on_the_same_history_ends_with_2(tmp_path: Path) -> None:
    with engines() as served, running(write(tmp_path, configuration(served))) as first:
        path = tmp_path / "second.yaml"
        path.write_text(yaml.safe_dump(configuration(served, web={"listen": f"127.0.0.1:{free_port()}"})))
        code, out, err = run("run", "-c", str(path))
        assert (code, out) == (2, "")
        assert "is in use by another sizewatch" in err
        cycles = first.counts.cycles
        assert wait_for(lambda: first.counts.cycles > cycles)


def test_a_role_fleet_whose_store_hangs_ends_at_once(tmp_path: Path) -> None:
    with hostile_store.serving() as store:
        store.act = hostile_store.hangs
        store_keys = {"url": store.url, "timeout": "60s"}
        more = {"role": "fleet", "store": store_keys, "tiers": {"cpu-small": {"from": "agents"}}}
        data = configuration([], web={"listen": f"127.0.0.1:{free_port()}"}, **more)
        keys = {name: value for name, value in data.items() if name not in ("targets", "scrape_interval", "gpus")}
        with process("run", "-c", str(write(tmp_path, keys))) as started:
            # The query of the cycle, and that of the back-fill.
            assert wait_for(lambda: len(store.asked) >= 2 or started.poll() is not None)
            started.send_signal(signal.SIGTERM)
            code, _, err = ended(started)
    assert code == 0, err
    assert "did not" not in err, "a query was waited for until it was late"
    assert "stopped cycles=" in err
    assert "Traceback" not in err


def test_a_data_dir_that_cannot_be_written_ends_with_2_and_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = write(tmp_path, configuration([], data_dir=str(tmp_path / "file"), web={"listen": f":{free_port()}"}))
    code, out, err = run("run", "-c", str(path))
    assert (code, out) == (2, "")
    said = f"sizewatch run: {path}: data_dir: {tmp_path / 'file'} is, or lies in, a file; name a folder"
    assert err.splitlines()[-1] == said
    assert "Traceback" not in err


def test_a_daemon_in_role_node_keeps_nothing_on_disk(tmp_path: Path) -> None:
    with engines() as served, daemon(tmp_path, served, role="node") as (started, url):
        assert b'role="node"' in ask(url, "metrics")
        started.send_signal(signal.SIGTERM)
        assert ended(started)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["sizewatch.yaml"]


def test_log_lines_are_one_json_object_each_where_that_is_configured(tmp_path: Path) -> None:
    logging = {"format": "json", "level": "info"}
    with engines() as served, daemon(tmp_path, served, logging=logging) as (started, _):
        served[0].act = answers_500
        assert wait_for(lambda: len(served[0].asked) >= 4)
        started.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in ended(started)[2].splitlines()]
    assert {line["level"] for line in lines} == {"info", "warning"}
    assert any(line["message"].startswith("scrape failed tier=cpu-small replica=r0") for line in lines)


def test_the_doctor_finds_a_running_installation_sound(tmp_path: Path) -> None:
    with engines() as served, daemon(tmp_path, served) as (started, _):
        code, out, err = run("doctor", "-c", str(tmp_path / "sizewatch.yaml"))
        assert (code, err) == (0, "")
        assert "target cpu-small/r0" in out
        assert "FAIL" not in out
        started.send_signal(signal.SIGTERM)
        assert ended(started)[0] == 0
