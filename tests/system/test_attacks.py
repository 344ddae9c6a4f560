"""Role `node` beside hostile neighbours, within the memory that the manifest ships: rows of `benchmarks/attacks.py`, shortened."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from paths import ROOT
from waiting import wait_for

sys.path.append(str(ROOT / "benchmarks"))

from attacks import HEALTHY, LIMIT_MIB, Attack, World, attacked, find_attacks, health, metrics, peak_mib

INTERVAL_SECONDS = 2.0
READS = 4
ATTACKS = find_attacks()
HEALTHY_UP = re.compile(r'sizewatch_target_up\{.*replica="healthy\d".*\}')
REFUSED = re.compile(r'sizewatch_scrape_failures_total\{.*replica="(hostile\d+)".*\}')


def named(begin: str) -> list[Attack]:
    found = [one for one in ATTACKS if one.name.startswith(begin)]
    assert found
    return found


def test_the_limit_of_the_harness_is_that_of_the_manifest() -> None:
    (manifest,) = yaml.safe_load_all((ROOT / "deploy/kubernetes/base/node/daemonset.yaml").read_text())
    limits = [one["resources"]["limits"]["memory"] for one in manifest["spec"]["template"]["spec"]["containers"]]
    assert limits == [f"{LIMIT_MIB}Mi"]


def are_up(page: dict[str, float]) -> bool:
    """Return whether each healthy target was read the last time. On a busy machine a scrape may take too long once."""
    return [value for series, value in page.items() if HEALTHY_UP.match(series)] == [1.0] * len(HEALTHY)


@pytest.mark.parametrize(
    ("begin", "sign"),
    [
        ("page-", "sizewatch_scrape_failures_total{"),
        ("kube-5000-gpus", "sizewatch_target_up{"),
        ("web-webhook-flood", "sizewatch_webhook_refusals_total{"),
    ],
)
def test_the_agent_keeps_to_the_shipped_limit_and_reads_its_other_targets(
    begin: str, sign: str, tmp_path: Path
) -> None:
    world, pages = World(tmp_path), [{}]

    def have_all_come() -> bool:
        pages.append(metrics(world))
        reads = [len(world.reads.get(path, ())) for path in (*HEALTHY, *hostile)]
        return min(reads) >= READS and health(world)[0] == 200 and are_up(pages[-1])

    with attacked(world, named(begin), ROOT, None, INTERVAL_SECONDS) as process:
        hostile = [path for path in world.pages if path.startswith("/hostile")]
        assert wait_for(lambda: process.poll() is not None or have_all_come(), every=0.25)
        assert process.poll() is None, (tmp_path / "log").read_text()
        assert 0 < peak_mib(process) < LIMIT_MIB
    assert process.returncode == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
    page = pages[-1]
    assert any(value for series, value in page.items() if series.startswith(sign)), sorted(page)
    refused = {found[1] for series, value in page.items() if value and (found := REFUSED.match(series))}
    assert refused == {path.strip("/") for path in hostile}
