"""The API's client and the watch of pods, against a server that speaks the API's own shapes."""

import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from kube_standin import Kube, kube_of_node, pod, serving  # noqa: F401 (fixture)
from waiting import CEILING_SECONDS, wait_for

from agent.config.load import parse_config
from agent.config.peer import Peer
from agent.kubernetes import api as api_module
from agent.kubernetes import pod_watch
from agent.kubernetes.api import KubernetesApiError, KubernetesClient, endpoint_from_pod
from agent.kubernetes.pod_watch import PodWatch, PodWatchState


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_watch, "LONGEST_RETRY_SECONDS", 0.05)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("good\n")
    return path


@contextmanager
def asking(kube: Kube, token: Path | None, seconds: float = CEILING_SECONDS) -> Iterator[KubernetesClient]:
    peer = Peer(url=kube.url, bearer_token_file=str(token) if token else None, timeout_seconds=seconds)
    with closing(KubernetesClient(peer)) as api:
        yield api


@contextmanager
def watching(
    kube: Kube,
    token: Path,
    *,
    keep: float = 60.0,
    seconds: float = CEILING_SECONDS,
    watch_seconds: float = 20.0,
    **given: object,
) -> Iterator[PodWatch]:
    config = parse_config({"discovery": {"kubernetes": {"node": "gpu-1", **given}}}, environment={})
    keys = config.discovery.kubernetes.model_copy(update={"keep_seconds": keep})
    with asking(kube, token, seconds) as api:
        watch = PodWatch(api, keys, watch_seconds)
        watch.start()
        try:
            yield watch
        finally:
            watch.stop()
            assert not watch._thread.is_alive(), "the watch did not end"


def names(known: PodWatchState) -> set[str]:
    return {one.name for one in known.pods.values()}


def sees(watch: PodWatch, *wanted: str) -> bool:
    return bool(wait_for(lambda: names(watch.snapshot()) == set(wanted)))


def test_api_endpoint_comes_from_the_pod(tmp_path: Path) -> None:
    there = endpoint_from_pod({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert there.url == "https://[fd00::1]:6443"
    assert there.bearer_token_file == str(tmp_path / "token")
    with pytest.raises(KubernetesApiError, match=r"discovery\.kubernetes\.api\.url"):
        endpoint_from_pod({}, tmp_path)


def test_renewed_token_is_used_at_once(kube: Kube, token: Path) -> None:
    kube.node("gpu-1", a="b")
    with asking(kube, token) as api:
        assert api.get("/api/v1/nodes/gpu-1")["metadata"]["labels"] == {"a": "b"}
        kube.tokens = {"renewed"}
        with pytest.raises(KubernetesApiError, match="401") as refused:
            api.get("/api/v1/nodes/gpu-1")
        assert "good" not in str(refused.value)
        token.write_text("renewed")
        assert api.get("/api/v1/nodes/gpu-1")["kind"] == "Node"


def test_renewed_cluster_ca_is_taken(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    new.issue_cert("127.0.0.1").configure_cert(context)
    (tmp_path / "token").write_text("good")
    old.cert_pem.write_to_path(tmp_path / "ca.crt")
    with serving(Kube(), tls=context) as kube:
        kube.node("gpu-1")
        host, port = kube.url.removeprefix("https://").split(":")
        server = endpoint_from_pod({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}, tmp_path)
        api = KubernetesClient(server)
        with pytest.raises(KubernetesApiError, match="CA"):
            api.get("/api/v1/nodes/gpu-1")
        new.cert_pem.write_to_path(tmp_path / "ca.crt")
        assert api.get("/api/v1/nodes/gpu-1")["kind"] == "Node"
        api.close()


def test_broken_watch_is_repeated_with_pauses(kube: Kube, token: Path) -> None:
    kube.put(pod("a"))
    kube.break_off = True
    with watching(kube, token) as watch:
        assert sees(watch, "a")
        time.sleep(0.5)
    assert sum("watch=1" in one for one in kube.asked) < 50


def test_api_errors_are_reported_in_words(kube: Kube, token: Path, tmp_path: Path) -> None:
    with asking(kube, tmp_path / "none") as api, pytest.raises(KubernetesApiError, match=r"(?i)no such file"):
        api.get("/api/v1/pods")
    with asking(kube, token) as api:
        with pytest.raises(KubernetesApiError) as missing:
            api.get("/api/v1/nodes/other")
        assert missing.value.status == 404
        kube.put(pod("a", labels={"env": "prod"}))
        (item,) = api.get("/api/v1/pods")["items"]
        assert item["metadata"]["labels"]["env"] == "prod", "a label may be named like a heavy key"
        assert "managedFields" not in item["metadata"]
        assert "env" not in item["spec"]["containers"][0]
        kube.refuse = 403
        with pytest.raises(KubernetesApiError, match="kubernetes-discovery"):
            api.get("/api/v1/pods")


def test_large_or_endless_answer_is_abandoned(kube: Kube, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kube.node("gpu-1", long="x" * 5000)
    monkeypatch.setattr(api_module, "MOST_BYTES", 1000)
    with asking(kube, token) as api, pytest.raises(KubernetesApiError, match="more than 1000 bytes"):
        api.get("/api/v1/nodes/gpu-1")
    kube.hang = True
    with asking(kube, token, seconds=0.3) as api, pytest.raises(KubernetesApiError, match=r"0\.3 s"):
        api.get("/api/v1/nodes/gpu-1")


def test_node_pods_are_listed_and_followed(kube: Kube, token: Path) -> None:
    kube.put(pod("a"))
    kube.put(pod("elsewhere", node="gpu-2"))
    with watching(kube, token) as watch:
        assert sees(watch, "a")
        kube.put(pod("b"))
        assert sees(watch, "a", "b")
        kube.delete("a")
        assert sees(watch, "b")
        kube.put(pod("b", phase="Succeeded"))
        kube.put(pod("refused", phase="Failed"))
        assert sees(watch)
        assert watch.snapshot().trouble == ""
    assert "resourceVersion=0" in kube.asked[0]
    assert "fieldSelector=spec.nodeName%3Dgpu-1" in kube.asked[0]
    assert sum("watch=1" not in one for one in kube.asked) == 1, "one list is enough"


def test_namespaces_are_asked_or_filtered(kube: Kube, token: Path) -> None:
    kube.put(pod("a"))
    kube.put(pod("b", namespace="other"))
    kube.put(pod("c", namespace="third"))
    with watching(kube, token, namespaces=["other"]) as watch:
        assert sees(watch, "b")
    assert set(kube.paths()) == {"/api/v1/namespaces/other/pods"}
    with watching(kube, token, namespaces=["other", "llm"], selector="app=vllm") as watch:
        assert sees(watch, "a", "b")
    # The first watch may still ask while the second begins.
    selected = {one.partition("?")[0] for one in kube.asked if "labelSelector=app%3Dvllm" in one}
    assert selected == {"/api/v1/pods"}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"items": [{}', b'{"kind": "PodList", "items": []}'])
def test_broken_list_is_no_empty_node(kube: Kube, token: Path, body: bytes) -> None:
    kube.put(pod("a"))
    kube.list_body = body
    with watching(kube, token) as watch:
        assert wait_for(lambda: watch.snapshot().trouble)
        assert not watch.snapshot().listed
        kube.list_body = None
        assert sees(watch, "a")


def test_expired_version_means_new_list(kube: Kube, token: Path) -> None:
    kube.put(pod("a"))
    with watching(kube, token) as watch:
        assert sees(watch, "a")
        with kube.lock:
            del kube.pods["llm", "a"]
        kube.pods["llm", "b"] = pod("b")
        kube.forget()
        assert sees(watch, "b"), "what happened while nobody followed is seen by the list"
        assert watch.snapshot().trouble == ""
    assert sum("watch=1" not in one for one in kube.asked) == 2


def test_watch_resumes_from_last_bookmark(kube: Kube, token: Path) -> None:
    def versions() -> list[int]:
        """From which version each watch was asked for."""
        watches = [one for one in list(kube.asked) if "watch=1" in one]
        return [0, *(int(one.partition("resourceVersion=")[2].partition("&")[0]) for one in watches)]

    kube.put(pod("a"))
    with watching(kube, token, watch_seconds=0.6) as watch:
        assert sees(watch, "a")
        for _ in range(5):
            kube.put(pod("elsewhere", node="gpu-2"))
        # On a busy machine a watch may end before its first bookmark came.
        assert wait_for(lambda: max(versions()) >= 106)
    assert sum("watch=1" not in one for one in kube.asked) == 1


def test_absent_api_keeps_pods_for_a_while(kube: Kube, token: Path) -> None:
    kube.put(pod("a"))
    with watching(kube, token, keep=3600.0) as watch:
        assert sees(watch, "a")
        kube.refuse = 503
        kube.forget()
        assert wait_for(lambda: watch.snapshot().trouble)
        assert names(watch.snapshot()) == {"a"}
        assert "503" in watch.snapshot().trouble
        watch._keys = watch._keys.model_copy(update={"keep_seconds": 0.0})
        assert wait_for(lambda: not watch.snapshot().pods)
        assert "given up" in watch.snapshot().trouble
        kube.refuse = 0
        watch._keys = watch._keys.model_copy(update={"keep_seconds": 3600.0})
        back = "and they are back as soon as the API is"
        assert wait_for(lambda: watch.snapshot() == PodWatchState(pods=watch.snapshot().pods, listed=True)), back
        assert names(watch.snapshot()) == {"a"}


@pytest.mark.parametrize(
    "strange",
    [
        {"metadata": None, "spec": [], "status": 7},
        {"metadata": {"name": 1, "namespace": [], "uid": {}}},
        {"metadata": {"name": "x", "namespace": "y", "uid": "z", "labels": [1]}, "spec": {"containers": [3]}},
    ],
)
def test_strange_object_costs_only_itself(kube: Kube, token: Path, strange: dict[str, object]) -> None:
    with watching(kube, token) as watch:
        assert wait_for(lambda: watch.snapshot().listed)
        kube.tell({"spec": {"nodeName": "gpu-1"}, **strange})
        kube.put(pod("a"))
        assert wait_for(lambda: "a" in names(watch.snapshot()))


def test_readiness_time_needs_an_earlier_sight(kube: Kube, token: Path) -> None:
    kube.put(pod("old", made=1000.0, became_ready=9000.0))
    kube.put(pod("new", made=1000.0, ready=False))
    # It served for a day before a probe failed: it would count as a start of a day.
    kube.put(pod("busy", made=1000.0, ready=False, became_ready=90_000.0))

    def times(name: str) -> tuple[object, object]:
        found = next(one.times for one in watch.snapshot().pods.values() if one.name == name)
        return found.asked_at, found.ready_at

    with watching(kube, token) as watch:
        assert sees(watch, "old", "new", "busy")
        kube.put(pod("busy", made=1000.0, became_ready=90_060.0))
        kube.put(pod("new", made=1000.0, became_ready=1300.0))
        assert wait_for(lambda: times("new") == (1000.0, 1300.0))
        assert times("old") == times("busy") == (None, None), "a condition tells its last change"
        kube.put(pod("new", made=1000.0, ready=False, became_ready=2000.0))
        kube.put(pod("new", made=1000.0, became_ready=2100.0))
        kube.put(pod("last"))
        assert wait_for(lambda: "last" in names(watch.snapshot()))
        assert times("new") == (1000.0, 1300.0), "a probe that failed later is no start"
        kube.put(pod("new", made=1000.0, restarts=1, ready=False, started=3000.0))
        kube.put(pod("new", made=1000.0, restarts=1, started=3000.0, became_ready=3200.0))
        assert wait_for(lambda: times("new") == (None, 3200.0)), "a container that was started again was not asked for"


def test_standin_pods_fit_kubernetes_schema() -> None:
    validator: Any = pytest.importorskip("kubernetes_validate")
    shut = pod("b", address=None, labels={"x": "y"}, annotations={"z": "z" * 5000}, ready=False, hostNetwork=True)
    release = validator.latest_version()
    for made in (pod("a"), shut):
        assert validator.validate(made, release, strict=True)
    with pytest.raises(validator.ValidationError, match="containers"):
        validator.validate({**shut, "spec": {"containers": "none"}}, release, strict=True)
