"""GPUs of an engine: by its process or its parallel size, else those of its host, and the words for it."""

from dataclasses import replace

import pytest
from gpu_pages import readout
from paths import TESTS

from agent.doctor import engine_hosts
from agent.doctor.engine_hosts import OF_HOST, Candidate, find_gpus
from agent.scrape.engine_probe import EngineProbe
from agent.scrape.scrapers import PageReader

HERE, ELSEWHERE = "http://127.0.0.1:8000/metrics", "http://other:8000/metrics"
SHARED = "which engine owns which of them is not known"


def probe(url: str, **facts: str) -> EngineProbe:
    reader = PageReader()
    page = reader.read((TESTS / "pages" / "vllm-0.33.0.prom").read_bytes(), 1.0)
    page = replace(page, facts={**page.facts, **facts})
    return EngineProbe(url=url, engine=reader.engine, page=page, model="m", context_tokens=None)


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 70 serves port 8000; its worker 71 and the worker 91 of another program are on GPUs."""
    serving = (Candidate(port=8000, pid=70, parallel=2), Candidate(port=30000))
    monkeypatch.setattr(engine_hosts, "find_candidates", lambda: serving)
    monkeypatch.setattr(engine_hosts, "lineage", lambda pid: frozenset((pid, pid // 10 * 10)))


@pytest.mark.parametrize(
    ("engines", "pids", "gpus", "doubt"),
    [
        ([probe(HERE)], [(71,), (), (91,)], "a", ""),
        ([probe(HERE)], [(71,), (72, 91), ()], "ab", ""),
        ([probe(HERE), probe(HERE.replace("8000", "30000"))], [(71,), (), ()], "a", ""),
        ([probe(HERE), probe(HERE.replace("8000", "30000"))], [(91,), (), ()], "abc", SHARED),
        # The command line has two GPUs, and no process is seen on them, or those of a container.
        ([probe(HERE)], [(), (), ()], "abc", "the engine uses 2 of them, which is not known"),
        ([probe(HERE)], [(5,), (6,), ()], "ab", ""),
        ([probe(HERE, tensor_parallel_size="3")], [(), (), ()], "abc", ""),
        ([probe(ELSEWHERE)], [(71,), (), ()], "abc", OF_HOST),
        ([probe(ELSEWHERE)], [()], "a", ""),
        ([probe(ELSEWHERE, tensor_parallel_size="1", pipeline_parallel_size="1")], [(), (4,), ()], "b", ""),
        ([probe(ELSEWHERE, tensor_parallel_size="many")], [(), (4,), ()], "abc", OF_HOST),
        ([replace(probe(ELSEWHERE, tensor_parallel_size="1"), holds="3 engines")], [(), (4,), ()], "abc", OF_HOST),
    ],
)
def test_engine_gets_its_own_gpus_only(
    engines: list[EngineProbe], pids: list[tuple[int, ...]], gpus: str, doubt: str
) -> None:
    latest = {name: readout(name, pids=seen) for name, seen in zip("abc", pids, strict=False)}
    hosts = dict.fromkeys(latest, "" if engines[0].url == HERE else "other")
    seen = find_gpus(engines[0], engines, hosts, latest)
    assert ("".join(seen.gpus), seen.doubt) == (gpus, doubt)
    assert (seen.measured == seen.gpus) == (doubt in ("", OF_HOST))


def test_gpus_of_another_host_are_none() -> None:
    engines = [probe(HERE), probe(ELSEWHERE)]
    latest = {"a": readout("a"), "b": readout("b")}
    assert find_gpus(engines[1], engines, {"a": "", "b": "other"}, latest).gpus == ("b",)


def test_no_gpu_leaves_no_doubt() -> None:
    engines = [probe(HERE), probe(HERE)]
    assert find_gpus(engines[0], engines, {}, {}) == ((), "")
