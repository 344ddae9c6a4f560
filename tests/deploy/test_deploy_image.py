"""deploy/image and the packages: what is in them, who runs in them, reproducible bytes, and that a node has what it loads.

Every distribution that runs is pinned, its licence is known, and the bill of materials lists it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployed import chart, containers, pods
from engine_server import engines
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical
from paths import ROOT, TESTS
from tools import run_words

from agent.errors import OPTIONAL_MODULES, explain_missing_module
from agent.history.store import HistoryStore
from agent.version import VERSION

sys.path.append(str(ROOT / "deploy"))
import audit
import sbom

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
    spec = pods(chart())["DaemonSet", "sizewatch-node"]
    (container,) = containers(spec)
    assert (json.loads(command), container["ports"][0]["containerPort"]) == (container["args"], PORT)
    user = spec["securityContext"]["runAsUser"]
    assert users[-1] == f"{user}:{user}"


def test_base_image_is_pinned_by_digest() -> None:
    pinned = r"^ARG PYTHON_IMAGE=python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}$"
    assert re.search(pinned, DOCKERFILE, flags=re.MULTILINE)
    assert {text.split("\n")[0] for text in stages().values()} == {"FROM ${PYTHON_IMAGE}"}
    assert "ADD " not in DOCKERFILE
    assert f"\nARG VERSION={VERSION}\n" in DOCKERFILE
    for label in ("title", "description", "version", "revision", "created", "licenses", "base.name"):
        assert f"org.opencontainers.image.{label}=" in DOCKERFILE


def test_images_install_locked_wheels_only() -> None:
    lines = stages()["full-packages"].splitlines() + stages()["node-packages"].splitlines()
    installs = [line for line in lines if '"install"' in line]
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
    text = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied: set[str] = set()
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, flags=re.MULTILINE):
        copied |= {word.removesuffix("/") for word in line.split()[:-1]}
    assert copied == let_in
    assert all((ROOT / one).exists() for one in copied)
    assert {"**/__pycache__", "**/*.pyc"} <= set(lines)


BUILD = "import sys, hatchling.build as b; b.build_wheel(sys.argv[1]); b.build_sdist(sys.argv[1])"
SOURCES = (
    "agent",
    "exporters",
    "forecast",
    "rules",
    "docs/runbooks.md",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    ".gitignore",
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def build(source: Path, out: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution of a tree."""
    words = [sys.executable, "-c", BUILD, str(out)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    run_words(words, cwd=source, env=environment, check=True, text=False)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(ROOT, tmp_path_factory.mktemp("packages"))


def test_packages_are_reproducible(packages: tuple[Path, Path], tmp_path: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    for name in SOURCES:
        target = tmp_path / "elsewhere" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=ignore, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(ROOT / name, target)
    for path in (tmp_path / "elsewhere").rglob("*.py"):
        path.chmod(0o600)
    again = build(tmp_path / "elsewhere", tmp_path / "out")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in packages]


def test_wheel_has_what_runs(packages: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(packages[0]) as wheel:
        held = set(wheel.namelist())
        assert wheel.read("exporters/docs/runbooks.md") == (ROOT / "docs" / "runbooks.md").read_bytes()
    tracked = run_words(["git", "ls-files", *SOURCES[:4]])
    assert set(tracked.stdout.split()) <= held
    assert {name.partition("/")[0] for name in held} == {*SOURCES[:4], f"sizewatch-{PROJECT['version']}.dist-info"}


def test_sdist_builds_the_same_wheel(packages: tuple[Path, Path], tmp_path: Path) -> None:
    with tarfile.open(packages[1]) as source:
        source.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    assert build(folder, tmp_path / "out")[0].read_bytes() == packages[0].read_bytes()


def test_the_wheel_runs_where_it_is_unpacked(packages: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(packages[0]) as wheel:
        wheel.extractall(tmp_path)
    lines = (
        "import sys",
        f"sys.path.insert(0, {str(tmp_path)!r})",
        "import agent",
        "from agent.cli.main import main",
        "print(agent.__file__)",
        "main(['--version'])",
        # Its tables of engines are package data.
        f"sys.exit(main(['inspect', {str(TESTS / 'pages' / 'vllm-0.33.0.prom')!r}]))",
    )
    ran = run_words([sys.executable, "-c", "\n".join(lines)], cwd="/", check=True)
    lines = ran.stdout.splitlines()
    assert lines[:2] == [str(tmp_path / "agent" / "__init__.py"), f"sizewatch {PROJECT['version']}"]
    assert any("vLLM counts no adapter loads" in line for line in lines), "tables of engines are package data"


def test_only_extra_is_kubernetes() -> None:
    owners = packages_distributions()
    extras = PROJECT["optional-dependencies"]
    assert extras.keys() == {"kubernetes"}
    wanted = {canonical(Requirement(text).name) for text in extras["kubernetes"]}
    assert wanted == {canonical(owners[module][0]) for module, advice in OPTIONAL_MODULES.items() if "pip" in advice}


BLOCKED = f"""
import sys
LACKS = {sorted(OPTIONAL_MODULES)}
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in LACKS:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Lacking())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in LACKS else find(name, *a)
from agent.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""The command line as the image for role node has it."""


def run_without_optional(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_words([sys.executable, "-c", BLOCKED, *words], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})


PLAN = str(TESTS / "plans" / "cpu-small.yaml")
CONFIGURED = f"{{plan: {PLAN}, data_dir: data, targets: [{{url: 'http://127.0.0.1:9/metrics', tier: cpu-small}}]}}"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("inspect", str(TESTS / "pages" / "vllm-0.33.0.prom")), 0),
        (("plan", "check", PLAN), 0),
        (("plan", "show", PLAN), 0),
        (("replay", str(TESTS / "recordings" / "steady"), "--plan", PLAN), 1),
        (("check", "-c", "sizewatch.yaml"), 3),
        (("explain", "SizewatchTtftDivergence"), 0),
        (("doctor", "-c", "sizewatch.yaml"), 1),
        (("--help",), 0),
    ],
)
def test_node_commands_run_without_optional_modules(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    (tmp_path / "sizewatch.yaml").write_text(CONFIGURED, encoding="utf-8")
    (tmp_path / "data").mkdir(mode=0o700)
    HistoryStore(tmp_path / "data" / "history.db").close()
    ran = run_without_optional(*words, folder=tmp_path)
    assert (ran.returncode, "Traceback" in ran.stderr) == (code, False), ran.stderr + ran.stdout
    assert ("the image for role node leaves it out" in ran.stdout) is (words[0] == "doctor")


@pytest.mark.parametrize("command", ["forecast", "backtest", "prewarm"])
def test_missing_library_names_the_image(command: str, tmp_path: Path) -> None:
    (tmp_path / "sizewatch.yaml").write_text(CONFIGURED, encoding="utf-8")
    (tmp_path / "data").mkdir()
    ran = run_without_optional(command, "-c", "sizewatch.yaml", "--tier", "cpu-small", folder=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"sizewatch {command}: needs ")
    assert ran.stderr.endswith(": the image for role node leaves it out; use the full one\n")
    assert ran.stderr.count("\n") == 1


def test_other_missing_module_is_a_defect() -> None:
    assert explain_missing_module(ModuleNotFoundError("", name="yaml")) is None
    assert explain_missing_module(ModuleNotFoundError("", name="numpy.linalg")) is not None


COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public)", re.IGNORECASE)


def test_running_parts_are_locked() -> None:
    pinned = locked(ROOT / "requirements.lock")
    running = {name: installed.version for name, (installed, _) in sbom.needed().items() if name != "sizewatch"}
    assert len(running) > 30
    assert {name: version for name, version in running.items() if pinned.get(name) != version} == {}


def test_licences_are_known_and_not_copyleft() -> None:
    licences = {name: sbom.licence(installed) for name, (installed, _) in sbom.needed().items()}
    assert [name for name, text in licences.items() if not text] == []
    assert {name: text for name, text in licences.items() if COPYLEFT.search(text)} == {}


def test_sbom_is_complete_and_reproducible() -> None:
    words = [sys.executable, "deploy/sbom.py"]
    first, second = (run_words(words, check=True, text=False).stdout for _ in range(2))
    assert first == second
    bill = json.loads(first)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["name"] == "sizewatch"
    listed = {one["name"]: one for one in bill["components"]}
    assert listed.keys() == sbom.needed().keys() - {"sizewatch"}
    assert all(one["purl"] == f"pkg:pypi/{name}@{one['version']}" and one["licenses"] for name, one in listed.items())
    refs = {one["bom-ref"] for one in (*bill["components"], bill["metadata"]["component"])}
    assert {ref for edge in bill["dependencies"] for ref in (edge["ref"], *edge["dependsOn"])} <= refs


FINE_PART = {"name": "six", "version": "1.17.0", "vulns": []}
SKIPPED = {"name": "pyyaml", "skip_reason": "Dependency not found on PyPI and could not be audited: pyyaml (6.0.3)"}
HOLE = {"id": "GHSA-x", "fix_versions": ["2.33"], "aliases": ["CVE-2026-1"], "description": "long"}
HOLED = {"name": "requests", "version": "2.32", "vulns": [HOLE]}


@pytest.mark.parametrize(
    ("parts", "trouble", "strict", "lenient", "said"),
    [
        ((FINE_PART,), "", 0, 0, "1 of 1 parts audited, 0 known holes"),
        ((FINE_PART, HOLED), "", 1, 1, "requests 2.32: GHSA-x, mended in 2.33"),
        ((HOLED, SKIPPED), "", 1, 1, "1 of 2 parts audited, 1 known holes"),
        ((FINE_PART, SKIPPED), "", 3, 0, f"NOT AUDITED: 1 parts, the first: {SKIPPED['skip_reason']}"),
        ((), "no answer within 120 s", 3, 0, "NOT AUDITED: no answer within 120 s"),
    ],
)
def test_audit_fails_on_holes_and_reports_skips(
    parts: tuple[Any, ...], trouble: str, strict: int, lenient: int, said: str
) -> None:
    told = audit.told
    lines, code = told(parts, trouble, False)
    assert said in lines
    assert code == strict
    assert told(parts, trouble, True) == (lines, lenient)


def test_accepted_hole_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "NO_DANGER", {"CVE-2026-1": "we send no such header"})
    assert audit.told((HOLED,), "", False) == (["1 of 1 parts audited, 0 known holes"], 0)


@pytest.mark.parametrize(
    ("program", "said"),
    [("echo '{}'", "pip-audit ended with 0"), ("echo no route >&2; exit 1", "no route"), (None, "is not installed")],
)
def test_audit_without_answer_says_why(program: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "pip-audit"
    if program is not None:
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)
    parts, trouble = audit.asked(str(path))
    assert parts == ()
    assert said in trouble


def test_ci_builds_sbom_and_audits() -> None:
    words = ["make", "--dry-run", "test"]
    plain = {key: value for key, value in os.environ.items() if key != "CI"}
    in_ci, here = (run_words(words, env=env, check=True).stdout for env in (plain | {"CI": "true"}, plain))
    assert "deploy/sbom.py" in in_ci
    assert "deploy/audit.py build/audit/bin/pip-audit --lenient" in in_ci
    assert "deploy/audit.py" not in here
