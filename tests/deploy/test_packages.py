"""Wheel and source distribution: the same bytes from any place, with everything that runs; and what an installation may lack."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical
from paths import ROOT, TESTS
from tools import run_words

from agent.errors import OPTIONAL_MODULES, explain_missing_module
from agent.history.store import HistoryStore

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
    for name in SOURCES:
        target = tmp_path / "elsewhere" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile
            )
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


@pytest.mark.parametrize("command", ["forecast", "backtest", "prewarm"])
def test_missing_library_names_the_image(command: str, tmp_path: Path) -> None:
    (tmp_path / "sizewatch.yaml").write_text(CONFIGURED, encoding="utf-8")
    (tmp_path / "data").mkdir()
    ran = run_without_optional(command, "-c", "sizewatch.yaml", "--tier", "cpu-small", folder=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"sizewatch {command}: needs ")
    assert ran.stderr.endswith(": the image for role node leaves it out; use the full one\n")
    assert ran.stderr.count("\n") == 1


def test_doctor_names_the_image(tmp_path: Path) -> None:
    (tmp_path / "sizewatch.yaml").write_text(CONFIGURED, encoding="utf-8")
    (tmp_path / "data").mkdir()
    doctor = run_without_optional("doctor", "-c", "sizewatch.yaml", folder=tmp_path).stdout
    assert "the image for role node leaves it out" in doctor
    assert "limits of memory" not in doctor


def test_other_missing_module_is_a_defect() -> None:
    assert explain_missing_module(ModuleNotFoundError("", name="yaml")) is None
    assert explain_missing_module(ModuleNotFoundError("", name="numpy.linalg")) is not None
