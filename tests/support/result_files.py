"""Loads of one benchmark result file, for tests."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.benchmarks.formats import read_all_results
from agent.benchmarks.run_model import BenchmarkRun
from agent.errors import BenchmarkError


def read_results(path: Path) -> tuple[BenchmarkRun, ...]:
    """Return all loads of a file in its order. Raise the first error of a load too."""
    found, others = read_all_results((path,))
    if others:
        raise others[0]
    return tuple(found)


def write_document(folder: Path, document: object) -> Path:
    """Write the document as the result file of a run and return its path."""
    path = folder / "run.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def read_document(folder: Path, document: object) -> BenchmarkRun:
    """Return the one load of a document."""
    (run,) = read_results(write_document(folder, document))
    return run


def explain_refusal(folder: Path, document: Any) -> str:
    """Return why a document is no load. The sentence names the file."""
    with pytest.raises(BenchmarkError) as caught:
        read_results(write_document(folder, document))
    assert str(caught.value).startswith(f"{folder / 'run.json'}: ")
    return caught.value.text
