"""The stairs: imports only go down, and a node loads nothing that it does not need."""

import ast
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from paths import ROOT
from tools import run_words

STAIRS = ("rules", "forecast", "exporters", "agent")
"""From the bottom up."""

MODULES = sorted(path for room in STAIRS for path in (ROOT / room).rglob("*.py"))
HEAVY = frozenset({"pandas", "numpy", "scipy", "statsmodels", "apprise"})
MOST_LINES = 500


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: a relative import hides which room it goes to"
            yield node.module or ""


@cache
def rooms_of(path: Path) -> frozenset[str]:
    return frozenset(module.partition(".")[0] for module in imported(path))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_down_the_stairs(path: Path) -> None:
    own = STAIRS.index(path.relative_to(ROOT).parts[0])
    assert not rooms_of(path) & set(STAIRS[own + 1 :])


@pytest.mark.parametrize("path", [p for p in MODULES if p.is_relative_to(ROOT / "rules")], ids=name_of)
def test_rules_use_standard_library_and_pydantic(path: Path) -> None:
    assert rooms_of(path) <= {*sys.stdlib_module_names, "pydantic", "pydantic_core", "rules"}


@pytest.mark.parametrize("room", ["rules", "exporters", "agent"])
def test_heavy_libraries_are_imported_by_forecast_only(room: str) -> None:
    # The forecasting process, what the forecast's commands load when they run; what sends a report: loaded by a process
    # of its own and by `sizewatch report`; a table of `plan import`, loaded when there is one.
    free = (
        ROOT / "agent" / "benchmarks" / "aiconfigurator.py",
        ROOT / "agent" / "forecasting",
        ROOT / "agent" / "reporting" / "delivery.py",
    )
    judged = [p for p in MODULES if p.is_relative_to(ROOT / room) and not any(p.is_relative_to(one) for one in free)]
    assert [name_of(path) for path in judged if rooms_of(path) & HEAVY] == []


LAZY = """
import json, sys
from agent.cli.main import TEXTS, command_line

for name in TEXTS:
    command_line().get_command(None, name)
print(json.dumps(sorted(sys.modules)))
"""


def test_commands_load_heavy_libraries_late() -> None:
    found = run_words([sys.executable, "-c", LAZY], check=True)
    assert not {module for module in json.loads(found.stdout) if module.partition(".")[0] in HEAVY}


def test_every_init_is_empty() -> None:
    assert [name_of(p) for p in MODULES if p.name == "__init__.py" and p.read_text(encoding="utf-8").strip()] == []


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in MODULES}
    assert [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("path", [p for p in MODULES if p.name != "__init__.py"], ids=name_of)
def test_module_has_docstring_and_limited_length(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), "no docstring"
    assert text.count("\n") <= MOST_LINES


@pytest.mark.parametrize("room", STAIRS)
def test_room_imports_without_rooms_above(room: str) -> None:
    """Whoever judges a window in a notebook imports `rules`, and gets nothing else."""
    modules = [name_of(p) for p in MODULES if p.is_relative_to(ROOT / room) and p.name != "__main__.py"]
    code = (
        f"import sys, importlib\nfor name in {modules!r}: importlib.import_module(name)\nprint('\\n'.join(sys.modules))"
    )
    found = run_words([sys.executable, "-c", code], check=True)
    above = set(STAIRS[STAIRS.index(room) + 1 :])
    assert not above & {module.partition(".")[0] for module in found.stdout.split()}
