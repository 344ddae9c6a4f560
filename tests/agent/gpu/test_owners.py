"""Which replica owns which MIG instance. What holds for every GPU is in test_gpus.py."""

from __future__ import annotations

import os
from pathlib import Path

from gpu_samples import by_uuid, readout

from agent.config.peer import Peer
from agent.gpu.owners import assign_gpus
from agent.scrape.scrapers import Target

FIRST, SECOND = "MIG-1c1e9a04-1a57-5b0e-8f6c-5f1d2b6a9c11", "MIG-2c1e9a04-1a57-5b0e-8f6c-5f1d2b6a9c22"
HALVES = by_uuid(readout(FIRST, None, pids=(os.getpid(),)), readout(SECOND, None, pids=()))


def target(replica: str, *gpus: str, pid_file: Path | None = None) -> Target:
    return Target(
        tier="t",
        replica=replica,
        pool="mixed",
        peer=Peer(url="http://127.0.0.1:1/metrics"),
        gpus=gpus,
        pid_file=str(pid_file) if pid_file else None,
    )


def gpus_by_replica(targets: list[Target]) -> dict[tuple[str, str], tuple[str, ...]]:
    return {key: owned.gpus for key, owned in assign_gpus(targets, HALVES).items()}


def test_two_replicas_share_a_gpu() -> None:
    found = gpus_by_replica([target("r", FIRST), target("s", SECOND)])
    assert found == {("t", "r"): (FIRST,), ("t", "s"): (SECOND,)}


def test_auto_finds_the_instance_of_a_process(tmp_path: Path) -> None:
    pid_file = tmp_path / "engine.pid"
    pid_file.write_text(f"{os.getpid()}\n", encoding="ascii")
    both = [target("r", "auto", pid_file=pid_file), target("s", SECOND)]
    assert gpus_by_replica(both) == {("t", "r"): (FIRST,), ("t", "s"): (SECOND,)}


def test_index_names_no_instance() -> None:
    (found,) = assign_gpus([target("r", "0")], HALVES).values()
    assert found.gpus == ()
    assert found.missing == (
        "GPU 0 is configured for it and has never been read here"
        " (where MIG is on, name its instances by UUID: `nvidia-smi -L`)"
    )
