"""Rule files written for a test, linted against saved pages."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from paths import TESTS

from agent.lint.catalogue import Page, catalogue, read_page
from agent.lint.findings import Finding, Linted
from agent.lint.linting import lint
from agent.lint.promql import parse

PAGES = TESTS / "pages"
VLLM, VLLM_09, VLLM_08, VLLM_V0 = "vllm-0.33.0", "vllm-0.9.2", "vllm-0.8.5", "vllm-0.6.6.post1"
SGLANG, SGLANG_IDLE = "sglang-0.5.23", "sglang_startup"
DCGM = "made dcgm-exporter"

_GPU = 'gpu="{0}",UUID="GPU-{0}",device="nvidia{0}",modelName="NVIDIA H200",Hostname="node-1"'
_FIELDS = (
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", 97),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", 41),
    ("DCGM_FI_DEV_FB_USED", "gauge", 120_000),
    ("DCGM_FI_DEV_FB_FREE", "gauge", 23_000),
    ("DCGM_FI_DEV_FB_RESERVED", "gauge", 771),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", 61),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", 512.5),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", 0),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", 123_456_789),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", 0),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", 0.31),
)
DCGM_PAGE = "".join(
    f"# TYPE {name} {kind}\n" + "".join(f"{name}{{{_GPU.format(gpu)}}} {value}\n" for gpu in (0, 1))
    for name, kind, value in _FIELDS
)
"""Two GPUs as dcgm-exporter prints them by default, in part."""


@functools.cache
def page(name: str) -> Page:
    """A saved page by its name without `.prom`."""
    body = DCGM_PAGE.encode() if name == DCGM else (PAGES / f"{name}.prom").read_bytes()
    return read_page(name, body)


def rule_file(folder: Path, *rules: dict[str, object]) -> Path:
    """A rule file of one group. JSON is YAML, and quotes what has to be quoted."""
    path = folder / "rules.yaml"
    path.write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}, indent=1), encoding="utf-8")
    return path


def linted(folder: Path, *rules: dict[str, object], pages: tuple[str, ...] = (VLLM, DCGM)) -> Linted:
    """These rules against these pages."""
    return lint((rule_file(folder, *rules),), catalogue(page(name) for name in pages))


def found(folder: Path, expression: str, *pages: str, name: str = "TheAlert", **more: object) -> tuple[Finding, ...]:
    """What is wrong with one expression, which must parse."""
    given = linted(folder, {"alert": name, "expr": expression, **more}, pages=pages or (VLLM, DCGM))
    assert given.broken == ()
    assert all(one.rule == name for one in given.findings)
    for one in given.findings:
        # What is to be written must be something that can be.
        assert not one.fix or parse(one.fix)
    return given.findings


def kinds_and_fixes(folder: Path, expression: str, *pages: str, **more: object) -> list[tuple[str, str]]:
    """Kind and fix of everything that is wrong with one expression."""
    return [(one.kind, one.fix) for one in found(folder, expression, *pages, **more)]
