"""deploy/image: what is in the images, who runs in them, and that a node has what it loads and nothing more.

No image is built here, for that takes a builder and a registry: what the Dockerfile does is read, and what it installs is held
against what a working node really loads.
"""

import json
import re
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
import yaml
from deployed import Json, chart, containers, pods
from engine_server import engines
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical
from paths import ROOT
from tools import run_words

from agent.version import VERSION

IMAGE = ROOT / "deploy" / "image"
DOCKERFILE = (IMAGE / "Dockerfile").read_text(encoding="utf-8")
PORT = 19095
LEFT_OUT = {"pandas", "statsmodels", "numpy"}
"""Packages of the full image alone, with what only they need."""
ON_OCCASION = {
    "grpcio",
    "protobuf",
    "orjson",
    "holidays",
    "python-dateutil",
    "jinja2",
    "apprise",
    "rich",
    "markdown-it-py",
}
"""Loaded where there is a kubelet's socket, a store to ask or a report to write, and not before."""


def node_pod() -> Json:
    """Return the spec of the node agent's pod."""
    return pods(chart())["DaemonSet", "sizewatch-node"]


def stages() -> dict[str, str]:
    """The lines of each stage, comments and continued lines taken out, with those of the stage it begins with."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    found: dict[str, str] = {}
    for part in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        base, name = re.fullmatch(r"(\S+) AS (\S+)", head).groups()  # type: ignore[union-attr]
        found[name] = found.get(base, f"FROM {base}\n") + body
    return found


LOCKED = re.compile(r"^([\w.-]+)==(\S+)(?: ;[^\\]*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n)+)", re.MULTILINE)


def for_nodes() -> set[str]:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = (*told["dependencies"], *told["optional-dependencies"]["kubernetes"])
    return {canonical(Requirement(text).name) for text in wanted} - LEFT_OUT


def locked(path: Path) -> dict[str, str]:
    """The pins of a lock; each has at least one hash."""
    text = path.read_text(encoding="utf-8")
    entries = LOCKED.findall(text)
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(entries) == len(lines), "a line without a hash"
    return {canonical(name): version for name, version, _ in entries}


def with_what_they_need(names: set[str]) -> set[str]:
    seen: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        told = map(Requirement, distribution(name).requires or ())
        left += [canonical(one.name) for one in told if one.marker is None or one.marker.evaluate({"extra": ""})]
    return seen


def test_locks_hold_what_is_needed() -> None:
    node, full, all_of_it = locked(IMAGE / "node.lock"), locked(IMAGE / "full.lock"), locked(ROOT / "requirements.lock")
    assert set(node) == with_what_they_need(for_nodes())
    assert node.items() <= full.items() <= all_of_it.items()
    assert locked(IMAGE / "build.lock").items() <= all_of_it.items()
    assert full.keys() - node.keys() == with_what_they_need(LEFT_OUT) - with_what_they_need(for_nodes())


NODE = """
import json, sys, urllib.request
from pathlib import Path
from agent.cli import main, run
from agent.config.load import load
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.config.web import Web

def on_cycle(daemon):
    for page in ("", "metrics", "api/status", "healthz"):
        urllib.request.urlopen(daemon.web.url + page, timeout=120).read()
    daemon.stop()

loaded = load(Path(sys.argv[1]), role="node")
Daemon(loaded, DaemonOptions(web=lambda _: Web.model_construct(listen="127.0.0.1:0"), on_cycle=on_cycle)).run()
print(json.dumps(sorted(sys.modules)))
"""


def test_node_loads_only_what_image_has(tmp_path: Path) -> None:
    with engines() as (engine,):
        configuration = {
            "plan": str(ROOT / "tests" / "plans" / "cpu-small.yaml"),
            "targets": [{"url": engine.url, "tier": "cpu-small", "replica": "r"}],
            # Looked for and not found on most machines, and its library is loaded for it.
            "gpus": {"source": "nvml"},
        }
        (tmp_path / "sizewatch.yaml").write_text(yaml.safe_dump(configuration))
        found = run_words([sys.executable, "-c", NODE, str(tmp_path / "sizewatch.yaml")])
    assert found.returncode == 0, found.stderr
    owners, modules = packages_distributions(), set(json.loads(found.stdout))
    # It keeps no history in memory.
    assert not modules & {"agent.history.store", "sqlite3", "agent.replay.replay", "agent.demo.engines"}
    loaded = {canonical(name) for module in modules for name in owners.get(module.partition(".")[0], ())}
    # What development brings into every process: the checkout itself, and what makes it importable.
    loaded -= {"sizewatch", "setuptools"}
    assert loaded <= with_what_they_need(for_nodes())
    assert for_nodes() - ON_OCCASION <= loaded, "in the node's list, and never loaded by one"


@pytest.mark.parametrize("name", ["node", "full"])
def test_images_run_as_nobody_without_a_shell(name: str) -> None:
    users = re.findall(r"^USER (.+)$", stages()[name], flags=re.MULTILINE)
    assert stages()[name].rstrip().endswith(users[-1]), "nothing is done as another user after it"
    # A list is the form that needs no shell.
    (entry,) = re.findall(r"^ENTRYPOINT (.+)$", stages()[name], flags=re.MULTILINE)
    (command,) = re.findall(r"^CMD (.+)$", stages()[name], flags=re.MULTILINE)
    assert json.loads(entry) == ["/opt/sizewatch/bin/sizewatch"]
    assert isinstance(json.loads(command), list)
    (check,) = re.findall(r"^HEALTHCHECK .*?CMD (.+)$", stages()[name], flags=re.MULTILINE)
    assert json.loads(check)[0] == "/opt/sizewatch/bin/python"
    assert f":{PORT}/healthz" in json.loads(check)[-1]
    assert f"\nEXPOSE {PORT}\n" in stages()[name]
    # What follows needs helm.
    (container,) = containers(node_pod())
    assert (json.loads(command), container["ports"][0]["containerPort"]) == (container["args"], PORT)
    user = node_pod()["securityContext"]["runAsUser"]
    assert users[-1] == f"{user}:{user}"


def test_base_image_is_pinned_by_digest() -> None:
    assert re.search(
        r"^ARG PYTHON_IMAGE=python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}$", DOCKERFILE, flags=re.MULTILINE
    )
    assert {text.split("\n")[0] for text in stages().values()} == {"FROM ${PYTHON_IMAGE}"}
    assert "ADD " not in DOCKERFILE
    assert f"\nARG VERSION={VERSION}\n" in DOCKERFILE
    for label in ("title", "description", "version", "revision", "created", "licenses", "base.name"):
        assert f"org.opencontainers.image.{label}=" in DOCKERFILE


def test_images_install_locked_wheels_only() -> None:
    installs = [
        line
        for line in stages()["full-packages"].splitlines() + stages()["node-packages"].splitlines()
        if '"install"' in line
    ]
    assert len(installs) == 6, "the tools twice; the packages and the program of each image"
    for line in installs:
        words = json.loads(line.removeprefix("RUN "))
        offline = "--no-index" in words and "--no-deps" in words
        assert offline or ("--require-hashes" in words and words[words.index("--only-binary") + 1] == ":all:"), line
    assert '"-r", "node.lock"' in stages()["node-packages"]
    assert '"-r", "full.lock"' in stages()["full-packages"]
    for name in ("node", "full"):
        assert "/opt/build" not in stages()[name], "pip stays behind"


def test_builder_gets_only_copied_files() -> None:
    lines = [
        line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if not line.startswith("#")
    ]
    assert lines[0] == "*"
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied: set[str] = set()
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, flags=re.MULTILINE):
        copied |= {word.removesuffix("/") for word in line.split()[:-1]}
    assert copied == let_in
    assert all((ROOT / one).exists() for one in copied)
    assert {"**/__pycache__", "**/*.pyc"} <= set(lines)
