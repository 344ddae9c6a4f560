"""Names that mean harm, in every place a name comes from, through every output there is: they arrive as text.

One daemon watches an engine whose page is hostile, for a tier and a replica whose names are as hostile as a configuration
takes; then every command reads what it left. A further output is a line of `OUTPUTS` or of `_commands`.
"""

import io
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import promql_parser
import pytest
import yaml
from daemon_runs import ask, configuration, run_command, running, write
from engine_server import Engine, engines, pages
from markdown import markdown
from paths import TESTS
from prometheus_client.parser import text_string_to_metric_families
from test_manifests import CHAT, objects
from tools import run_words

from agent.config.config import Logging
from agent.config.load import load
from agent.daemon.logs import set_up
from agent.errors import ConfigError
from agent.fleet.sums import quote_value, regex_any
from agent.history.store import HistoryStore
from agent.prometheus.answers import parse_answer, vector
from agent.sources.recording import load as load_recording
from exporters.autoscaling.manifests import FORMATS
from exporters.render.safe_text import one_line, strip_control_characters
from rules.evaluator.timeline import TimelineEvent, TimelineKind

ROUTES = ("/", "/metrics", "/api/status")

NAME = "<script>alert(1)</script>\"'&`|*_[x](javascript:alert(1)) ${HOME} {{ 7*7 }} =cmd|' /C calc'!A0 %s {0}"
"""What a configuration takes as a name: printable, one line."""
FORGED = "2026-01-01 00:00:00,000 ERROR agent: forged"
PAGE = f"{NAME}\n{FORGED}\r\x1b[2J\x1b]0;title\x07\x9b31m\u202egnp.exe\u2028{FORGED}\u2066"
"""What a label of a page can hold, besides."""

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def hostile(page: bytes) -> bytes:
    escaped = PAGE.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    text = re.sub(r'model_name="[^"]*"', lambda _: f'model_name="{escaped}"', page.decode())
    info = f'vllm:lora_requests_info{{max_lora="4",running_lora_adapters="{escaped}",waiting_lora_adapters=""}} 1.7e9\n'
    return (text.replace("\r\n", "\n") + "# TYPE vllm:lora_requests_info gauge\n" + info).encode()


GPUS = TESTS / "gpu_exporter_pages" / "made-dcgm-mig.prom"


def hostile_gpus() -> bytes:
    """A GPU exporter's page; the name of a metric is as free as a label where it is quoted."""
    escaped = PAGE.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    text = re.sub(
        r'(modelName|UUID|Hostname)="([^"]*)"', lambda one: f'{one[1]}="{one[2]}{escaped}"', GPUS.read_text("utf-8")
    )
    return f'{text}# TYPE "{escaped}" gauge\n{{"{escaped}"}} 1\n'.encode()


def _commands(path: Path, url: str, gpus: str, folder: Path) -> dict[str, list[str]]:
    own = ["-c", str(path)]
    tier = [*own, "--tier", NAME]
    return {
        "check": ["check", *own],
        "check json": ["check", *own, "--format", "json"],
        "timeline": ["timeline", *own],
        "timeline json": ["timeline", *own, "--format", "json"],
        "doctor": ["doctor", *own],
        "doctor json": ["doctor", *own, "--format", "json"],
        "inspect": ["inspect", url],
        "inspect json": ["inspect", url, "--format", "json"],
        "inspect gpus": ["inspect", gpus],
        "inspect gpus json": ["inspect", gpus, "--format", "json"],
        "plan init": ["plan", "init", url],
        "report": ["report", *own, "--out", str(folder)],
        "forecast": ["forecast", *tier],
        "prewarm": ["prewarm", *tier],
        "whatif": ["whatif", *tier, "--instances", "2"],
    }


FILES = ("report.html", "report.md", "report.json")
OUTPUTS = (
    *(f"web {path}" for path in (*ROUTES, "/reports/")),
    *_commands(Path(), "", "", Path()),
    *(f"file {name}" for name in FILES),
    "log",
)


@pytest.fixture(scope="module", name="outputs")
def _outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("hostile")
    found: dict[str, str] = {}
    with engines(2) as served:
        served[0].pages = tuple(hostile(page) for page in pages())
        served[1].pages = (hostile_gpus(),)
        path = _configured(folder, served[:1])
        with _logging() as log, running(path, cycles=8) as daemon:
            for page in (*ROUTES, "/reports/"):
                found[f"web {page}"] = ask(daemon, page.lstrip("/")).decode()
        found["log"] = log.getvalue()
        restart = TimelineEvent(t=time.time(), kind=TimelineKind.RESTART, tier=NAME, replica=NAME, text="restarted")
        with HistoryStore(load(path).config.history_path) as store:
            store.book(events=(restart,))
        for name, words in _commands(path, served[0].url, served[1].url, folder / "report").items():
            found[name] = "".join(run_command(*words)[1:])
    for name in FILES:
        found[f"file {name}"] = (folder / "report" / name).read_text("utf-8")
    return found


def _configured(folder: Path, served: list[Engine]) -> Path:
    data = configuration(served, data_dir=str(folder / "data"))
    del data["plan"]
    data["targets"][0] |= {"tier": NAME, "replica": NAME, "engine_version": NAME}
    return write(folder, data)


@contextmanager
def _logging() -> Iterator[io.StringIO]:
    """What the daemon would have written on standard error, and at the end an error that holds the worst."""
    root, errors = logging.getLogger(), io.StringIO()
    before, level = root.handlers[:], root.level
    try:
        with redirect_stderr(errors):
            set_up(Logging())
        yield errors
        try:
            raise ValueError(PAGE)
        except ValueError:
            root.exception("lost %s", PAGE)
    finally:
        root.handlers[:] = before
        root.setLevel(level)


@pytest.mark.parametrize("output", OUTPUTS)
def test_no_name_forges_lines_or_controls(outputs: dict[str, str], output: str) -> None:
    text = outputs[output]
    assert text
    assert CONTROLS.findall(text) == []
    assert [line for line in text.split("\n") if line.startswith(FORGED)] == []


def test_the_hostile_names_do_reach_the_outputs(outputs: dict[str, str]) -> None:
    """Else this whole file would prove nothing."""
    plainly = ("web /metrics", "check", "timeline", "inspect", "inspect gpus", "report")
    assert [name for name in plainly if "<script>" not in outputs[name]] == []
    assert [name for name in ("web /", "file report.html") if "&lt;script&gt;" not in outputs[name]] == []
    assert "forged" in outputs["web /"] + outputs["inspect"]
    assert "forged" in outputs["log"]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.parametrize("output", ["web /", "web /reports/", "file report.html", "file report.md"])
def test_browser_runs_nothing_of_a_name(outputs: dict[str, str], output: str) -> None:
    text = outputs[output]
    seen = _Tags()
    seen.feed(markdown(text, extensions=["tables"]) if output.endswith(".md") else text)
    assert seen.tags
    for tag, attributes in seen.tags:
        assert tag not in ("script", "iframe", "object", "embed", "form", "base", "img")
        assert not [name for name in attributes if name.startswith("on")]
        assert not [value for value in attributes.values() if (value or "").strip().lower().startswith("javascript")]


def test_machine_formats_carry_names_unchanged(outputs: dict[str, str]) -> None:
    families = list(text_string_to_metric_families(outputs["web /metrics"]))
    labels = {value for family in families for sample in family.samples for value in sample.labels.values()}
    assert NAME in labels
    assert not [value for value in labels if "\n" in value]
    for output in ("web /api/status", "check json", "timeline json", "file report.json"):
        assert NAME in set(_texts(json.loads(outputs[output]))), output


def test_store_label_ends_no_line() -> None:
    """They are shown wherever a replica, a pod or a GPU is; what cannot be shown so is nobody's name."""
    body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": [
        {"metric": {"__name__": "up", "pod": PAGE, f"odd{PAGE}": "x"}, "value": [1.5, "1"]},
    ]}}).encode()  # fmt: skip
    for spelled in (body, body.replace(b"\\u001b", b"\x7f"), json.dumps(json.loads(body), ensure_ascii=False).encode()):
        (found,) = vector(parse_answer("http://store", spelled), 10)
        for text in (*found.labels, *found.labels.values()):
            assert CONTROLS.findall(text) == []
            assert "\n" not in text
        assert found.labels["pod"].startswith(NAME)


HALF = os.fsdecode(b"no-such-\xff")


@pytest.mark.parametrize("name", [HALF, "no-such-\x1b[2J\rfile\u202e"])
def test_output_is_plain_whatever_the_input(name: str) -> None:
    """The last way out, for what no rule above has thought of: here the name of a file."""
    done = run_words([sys.executable, "-m", "agent", "plan", "check", name], text=False)
    assert done.returncode == 2
    assert CONTROLS.findall(done.stderr.decode()) == []
    assert b"Traceback" not in done.stderr
    assert ("no-such-\ufffd" if name == HALF else "such") in done.stderr.decode()


def _texts(data: object) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from _texts(value)
    elif isinstance(data, list):
        for one in data:
            yield from _texts(one)
    elif isinstance(data, str):
        yield data


@pytest.mark.parametrize("kind", FORMATS)
def test_name_adds_no_object_to_manifest(kind: str) -> None:
    """The worst name of a page is no further document, key or line; tests/exporters/autoscaling has the rest."""
    good, bad = (objects(replace(CHAT, tier=tier), kind) for tier in ("chat", PAGE))
    assert [_shape(one) for one in good] == [_shape(one) for one in bad]


def _shape(data: object) -> object:
    if isinstance(data, dict):
        return {key: _shape(value) for key, value in data.items()}
    return [_shape(one) for one in data] if isinstance(data, list) else type(data).__name__


@pytest.mark.parametrize("name", [NAME, PAGE, '"}) or vector(1) #', "a\\", "\\", "} or up{", ".*|.+"])
def test_query_matches_exactly_one_name(name: str) -> None:
    parsed = promql_parser.parse(f'up{{tier="{quote_value(name)}",pod=~"{regex_any([name, "other"])}"}}')
    assert isinstance(parsed, promql_parser.VectorSelector)
    exact, pattern = parsed.matchers.matchers
    assert exact.value == name
    assert [bool(re.fullmatch(pattern.value, text)) for text in (name, "other", "x")] == [True, True, False]


@pytest.mark.parametrize("key", ["tier", "replica", "engine_version"])
@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "a\u202eb", " a", "a\x85b", "x" * 201])
def test_unprintable_configured_name_is_refused(tmp_path: Path, key: str, name: str) -> None:
    target = {"url": "http://127.0.0.1:1/metrics", "tier": "t", key: name}
    path = write(tmp_path, {"targets": [target], "gpus": {"source": "none"}})
    with pytest.raises(ConfigError, match=rf"targets\[0\]\.{key}: ") as caught:
        load(path)
    assert CONTROLS.findall(str(caught.value)) == []


def test_recording_cannot_name_itself_unprintably(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.gz").write_bytes(b"")
    entry = {"file": "x.jsonl.gz", "tier": "t", "replica": PAGE}
    (tmp_path / "recording.yaml").write_text(yaml.safe_dump({"targets": [entry]}))
    (target,) = load_recording(tmp_path)[0].targets
    assert target.replica
    assert CONTROLS.findall(target.replica) == []


def test_nothing_that_looks_like_a_colour_passes() -> None:
    assert strip_control_characters("\x1b[2J\x1b[8mhidden\x1b[1;31;8m a\rb\x1b") == "�[2J�[8mhidden�[1;31;8m a�b�"
    assert strip_control_characters("a\nb\tc\u2067") == "a\nb\tc�"
    # What a file's name or JSON may hold and no stream can write.
    assert one_line("a\udcffb\ud800") == strip_control_characters("a\udcffb\ud800") == "a\ufffdb\ufffd"
    assert one_line("a\nb\tc\u2067 ä 中") == "a�b�c� ä 中"
