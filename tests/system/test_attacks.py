"""Role `node` under a flood of wrong passwords, within the memory that the manifest ships: a shortened row of `attacks.py`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import yaml
from paths import ROOT
from waiting import wait_for

sys.path.append(str(ROOT / "benchmarks"))

from attacks import HEALTHY, LIMIT_MIB, World, attacked, find_attacks, health, metrics, peak_mib

INTERVAL_SECONDS = 2.0
READS = 4
HEALTHY_UP = re.compile(r'sizewatch_target_up\{.*replica="healthy\d".*\}')


def test_the_limit_of_the_harness_is_that_of_the_manifest() -> None:
    (manifest,) = yaml.safe_load_all((ROOT / "deploy/kubernetes/base/node/daemonset.yaml").read_text())
    limits = [one["resources"]["limits"]["memory"] for one in manifest["spec"]["template"]["spec"]["containers"]]
    assert limits == [f"{LIMIT_MIB}Mi"]


def are_up(page: dict[str, float]) -> bool:
    """Return whether each healthy target was read the last time. On a busy machine a scrape may take too long once."""
    return [value for series, value in page.items() if HEALTHY_UP.match(series)] == [1.0] * len(HEALTHY)


def test_the_agent_keeps_to_the_shipped_limit_and_reads_its_targets(tmp_path: Path) -> None:
    world, pages = World(tmp_path), [{}]
    flood = [one for one in find_attacks() if one.name == "web-passwords"]

    def have_all_come() -> bool:
        pages.append(metrics(world))
        reads = [len(world.reads.get(path, ())) for path in HEALTHY]
        return min(reads) >= READS and health(world)[0] == 200 and are_up(pages[-1])

    with attacked(world, flood, ROOT, None, INTERVAL_SECONDS) as process:
        assert wait_for(lambda: process.poll() is not None or have_all_come(), every=0.25)
        assert process.poll() is None, (tmp_path / "log").read_text()
        assert 0 < peak_mib(process) < LIMIT_MIB
    assert process.returncode == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
