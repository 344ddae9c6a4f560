"""examples/: every file is read by the program that it is for, and what can run here runs with the files themselves."""

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from alert_path_servers import alertmanager
from daemon_runs import process
from deployed import Json
from loopback import program, running
from paths import ROOT
from prometheus_server import prometheus_program
from tools import run_words
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.config.load import load

EXAMPLES = ROOT / "examples"
COMPOSE = EXAMPLES / "compose"


class Loader(yaml.SafeLoader):
    """YAML with Compose's own tags."""


Loader.add_multi_constructor("!", lambda loader, tag, node: None)


def compose(name: str = "compose.yaml") -> Json:
    found: Json = yaml.load((COMPOSE / name).read_text(encoding="utf-8"), Loader)
    return found


def text(path: str, changes: dict[str, str]) -> str:
    """A file of the examples with other addresses: here nothing is a host of Compose's network."""
    found = (EXAMPLES / path).read_text(encoding="utf-8")
    for before, after in changes.items():
        assert before in found, f"{path} has no {before}"
        found = found.replace(before, after)
    return found


@contextmanager
def engine() -> Iterator[str]:
    port = free_port()
    with program([sys.executable, COMPOSE / "engine.py", "--port", str(port)], f"http://127.0.0.1:{port}/metrics"):
        yield f"127.0.0.1:{port}"


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=CEILING_SECONDS) as answer:
        return json.load(answer)


def test_examples_say_what_was_not_tried() -> None:
    listed = set(re.findall(r"\]\((\w[\w-]*)/", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert listed == folders
    for name in folders - {"batch"}:
        page = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
        assert "**Not tried:**" in page
        for link in re.findall(r"\]\(([^)#:]+)\)", page):
            assert (EXAMPLES / name / link).exists(), link


def test_compose_mounts_exist_and_ports_are_local() -> None:
    services = compose()["services"]
    assert set(services) == {"engine", "sizewatch", "prometheus", "alertmanager", "grafana"}
    for name, service in services.items():
        for mount in service["volumes"]:
            source = mount.partition(":")[0]
            assert source in compose()["volumes"] or (COMPOSE / source).exists(), f"{name}: {mount}"
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert "build" in service or re.search(r":v?\d", service["image"]), f"{name}: no version"
    build = services["sizewatch"]["build"]
    dockerfile = (COMPOSE / build["context"] / build["dockerfile"]).read_text(encoding="utf-8")
    assert f" AS {build['target']}\n" in dockerfile
    assert compose("vllm.yaml")["services"]["engine"]["image"].startswith("vllm/vllm-openai:v")


def test_compose_reaches_prometheus_and_alertmanager(tmp_path: Path) -> None:
    manager, page = free_port(), free_port()
    with ExitStack() as stack:
        address = stack.enter_context(engine())
        (tmp_path / "plan.yaml").write_text(text("compose/plan.yaml", {}))
        changes = {"engine:8000": address, "/var/lib/sizewatch": str(tmp_path / "data"), ":19095": f"127.0.0.1:{page}"}
        (tmp_path / "sizewatch.yaml").write_text(text("compose/sizewatch.yaml", changes) + "scrape_interval: 1s\n")
        (tmp_path / "alertmanager.yml").write_text(text("compose/alertmanager.yml", {}))
        changes = {"alertmanager:9093": f"127.0.0.1:{manager}", "sizewatch:19095": f"127.0.0.1:{page}", "15s": "1s"}
        changes["/etc/prometheus/rules/*.yaml"] = f"{ROOT}/rules/prometheus/sizewatch-*.yaml"
        (tmp_path / "prometheus.yml").write_text(text("compose/prometheus.yml", changes))
        stack.enter_context(alertmanager(tmp_path, tmp_path / "alertmanager.yml", manager))
        stack.enter_context(process("run", "-c", str(tmp_path / "sizewatch.yaml")))
        store = stack.enter_context(running(prometheus_program(tmp_path, None))).url

        def readings() -> bool:
            found = ask(f"{store}/api/v1/query?query=sizewatch_target_up")["data"]["result"]
            return [one["value"][1] for one in found] == ["1"]

        wait_for(readings, every=0.2)
        managers = wait_for(lambda: ask(f"{store}/api/v1/alertmanagers")["data"]["activeAlertmanagers"], every=0.2)
        assert [one["url"] for one in managers] == [f"http://127.0.0.1:{manager}/api/v2/alerts"]
        rules = [rule["name"] for group in ask(f"{store}/api/v1/rules")["data"]["groups"] for rule in group["rules"]]
        assert "KvCacheCascade" in " ".join(rules)


def test_fleet_example_finds_its_replica(tmp_path: Path) -> None:
    with engine() as address:
        changes = {"127.0.0.1:8000": address, "15s": "1s"}
        (tmp_path / "prometheus.yml").write_text(text("fleet/prometheus.yml", changes))
        with running(prometheus_program(tmp_path, None)) as server:
            store = server.url
            (tmp_path / "plan.yaml").write_text(text("fleet/plan.yaml", {}))
            changed = text("fleet/sizewatch.yaml", {"http://127.0.0.1:9090": store})
            (tmp_path / "sizewatch.yaml").write_text(changed + f"web: {{listen: '127.0.0.1:{free_port()}'}}\n")
            assert load(tmp_path / "sizewatch.yaml").grave == ()
            doctor = [sys.executable, "-m", "agent", "doctor"]
            words = [*doctor, "-c", str(tmp_path / "sizewatch.yaml"), "--format", "json"]

            def found() -> bool:
                told = run_words(words)
                lines = json.loads(told.stdout)["findings"]
                return any(one["level"] == "ok" and "1 replica" in one["text"] for one in lines)

            wait_for(found, every=5.0)  # a store is read half a minute late
