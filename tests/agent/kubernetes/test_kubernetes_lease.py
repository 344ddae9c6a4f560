"""Leader election: never two, a new one in time, whatever clocks, delays and refusals do."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kube_standin import Kube, serving
from waiting import CEILING_SECONDS, wait_for

from agent.kubernetes import lease
from agent.kubernetes.api import KubernetesApiError, KubernetesClient, KubernetesEndpoint
from agent.kubernetes.lease import LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS, Elector, Leadership

NAME, SPACE = "sizewatch-fleet", "monitoring"


class Now:
    """A clock that stands still until it is set."""

    def __init__(self, t: float = 1000.0) -> None:
        self.t = t

    def __call__(self) -> float:
        return self.t


class Store:
    """The leases of an API: one object, with the refusals that the real one makes."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.away = False
        self.writes: list[str] = []

    def get(self, path: str) -> dict[str, Any]:
        self._there()
        if self.lease is None:
            raise KubernetesApiError("not found", 404)
        return copy.deepcopy(self.lease)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._there()
        if self.lease is not None:
            raise KubernetesApiError("exists", 409)
        return self._written(body)

    def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._there()
        if self.lease is None:
            raise KubernetesApiError("not found", 404)
        if body["metadata"].get("resourceVersion") != self.lease["metadata"]["resourceVersion"]:
            raise KubernetesApiError("modified", 409)
        return self._written(body)

    def _there(self) -> None:
        if self.away:
            raise KubernetesApiError("connection refused")

    def _written(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        self.writes.append(self.lease["spec"]["holderIdentity"])
        return copy.deepcopy(self.lease)


def member(store: Any, name: str, clock: Callable[[], float]) -> Leadership:
    return Leadership(store, NAME, SPACE, name, clock=clock, wall=lambda: 1_700_000_000.25)


def spec(store: Store) -> dict[str, Any]:
    assert store.lease is not None
    found: dict[str, Any] = store.lease["spec"]
    return found


def test_the_first_makes_the_lease_and_keeps_it_the_second_waits() -> None:
    store, now = Store(), Now()
    one, two = member(store, "one", now), member(store, "two", now)
    assert one.step(now.t)
    assert not two.step(now.t)
    assert two.holder == "one"
    for _ in range(20):
        now.t += RETRY_SECONDS
        assert one.step(now.t)
        assert not two.step(now.t)
    assert spec(store) == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2023-11-14T22:13:20.250000Z",
        "renewTime": "2023-11-14T22:13:20.250000Z",
        "leaseTransitions": 0,
    }


def test_who_cannot_renew_stops_before_another_may_begin() -> None:
    store, now = Store(), Now()
    one, two = member(store, "one", now), member(store, "two", now)
    assert one.step(now.t)
    two.step(now.t)
    store.away = True
    now.t += RENEW_SECONDS - 0.1
    assert one.step(now.t), "what was won stands until its time is over"
    assert "connection refused" in one.trouble
    now.t += 0.1
    assert not one.is_leader(now.t)
    store.away = False
    assert not two.step(now.t)
    now.t += LEASE_SECONDS - RENEW_SECONDS
    assert two.step(now.t)
    assert spec(store)["leaseTransitions"] == 1
    assert not one.step(now.t), "who comes back sees that it is another's"


def test_a_lease_counts_from_when_it_was_seen_not_from_the_time_written_in_it() -> None:
    store, now = Store(), Now()
    one, two = member(store, "one", now), member(store, "two", now)
    assert one.step(now.t)
    spec(store)["renewTime"] = "1999-01-01T00:00:00.000000Z"
    now.t += 100.0
    assert not two.step(now.t), "it was never seen before: its holder may have written it just now"
    now.t += LEASE_SECONDS - 0.1
    assert not two.step(now.t)
    now.t += 0.1
    assert two.step(now.t)


def test_two_that_see_the_same_expired_lease_at_once_are_told_apart_by_its_version() -> None:
    store, now = Store(), Now()
    one, two, three = (member(store, name, now) for name in ("one", "two", "three"))
    one.step(now.t)
    two.step(now.t)
    three.step(now.t)
    now.t += LEASE_SECONDS
    before = copy.deepcopy(store.lease)
    assert two.step(now.t)

    late = copy.copy(store)
    late.get = lambda path: before  # type: ignore[method-assign, assignment, return-value]
    three._api = late
    assert not three.step(now.t)
    assert store.writes == ["one", "two"]
    assert three.trouble == "", "to be second is no trouble"


def test_a_lease_given_back_is_free_at_once() -> None:
    store, now = Store(), Now()
    one, two = member(store, "one", now), member(store, "two", now)
    one.step(now.t)
    two.step(now.t)
    one.release(now.t)
    assert not one.is_leader(now.t)
    assert (spec(store)["holderIdentity"], spec(store)["leaseDurationSeconds"]) == ("", 1)
    assert two.step(now.t)
    one.release(now.t)
    assert spec(store)["holderIdentity"] == "two", "who does not lead gives nothing back"


def test_a_lease_that_somebody_deletes_is_not_taken_from_who_may_still_lead() -> None:
    store, now = Store(), Now()
    one, two = member(store, "one", now), member(store, "two", now)
    one.step(now.t)
    two.step(now.t)
    store.lease = None
    assert not two.step(now.t)
    assert one.step(now.t), "its holder makes it anew"
    store.lease = None
    now.t += LEASE_SECONDS
    assert two.step(now.t)


def test_what_others_wrote_into_the_lease_stays() -> None:
    store, now = Store(), Now()
    one = member(store, "one", now)
    one.step(now.t)
    assert store.lease is not None
    store.lease["metadata"]["labels"] = {"team": "x"}
    spec(store)["strategy"] = "OldestEmulationVersion"
    store.lease["metadata"]["resourceVersion"] = "77"
    now.t += RETRY_SECONDS
    assert one.step(now.t)
    assert store.lease["metadata"]["labels"] == {"team": "x"}
    assert spec(store)["strategy"] == "OldestEmulationVersion"


class World:
    """Time of several threads without waiting: who sleeps shortest goes on next, alone."""

    def __init__(self, threads: int) -> None:
        self.t = 0.0
        self._threads = threads
        self._waking: dict[int, float] = {}
        self._turn = threading.Condition()

    def sleep(self, seconds: float) -> None:
        own = threading.get_ident()
        with self._turn:
            self._waking[own] = self.t + seconds
            self._turn.notify_all()
            self._turn.wait_for(
                lambda: len(self._waking) == self._threads and min(self._waking, key=lambda k: self._waking[k]) == own
            )
            self.t = max(self.t, self._waking.pop(own))

    def leave(self) -> None:
        with self._turn:
            self._threads -= 1
            self._turn.notify_all()


class Far:
    """A store behind a network that delays, loses questions, and loses answers to what was done."""

    def __init__(self, store: Store, world: World, chance: random.Random) -> None:
        self._store, self._world, self._chance = store, world, chance
        self.cut = False

    def __getattr__(self, verb: str) -> Callable[..., dict[str, Any]]:
        def call(*words: Any) -> dict[str, Any]:
            slow = self._chance.random() < 0.15
            self._world.sleep(self._chance.uniform(0.001, 3.9 if slow else 0.05))
            if self.cut or self._chance.random() < 0.05:
                raise KubernetesApiError("lost on its way")
            found: dict[str, Any] = getattr(self._store, verb)(*words)
            self._world.sleep(self._chance.uniform(0.001, 3.9 if slow else 0.05))
            if self._chance.random() < 0.05:
                raise KubernetesApiError("done, and the answer lost")
            return found

        return call


@pytest.mark.parametrize("seed", range(12))
def test_never_two_lead_with_skewed_clocks_slow_networks_and_cuts(seed: int) -> None:
    chance, store, world = random.Random(seed), Store(), World(3)
    led: dict[str, list[list[float]]] = {"a": [], "b": [], "c": []}

    def life(name: str, seed: int) -> None:
        own = random.Random(seed)
        rate, offset = own.uniform(0.9, 1.1), own.uniform(-1e6, 1e6)
        far = Far(store, world, own)
        lead = member(far, name, lambda: offset + rate * world.t)
        while world.t < 600.0:
            # Each is cut off for half a minute of every two, at times of its own.
            far.cut = (world.t + 40.0 * "abc".index(name)) % 120.0 < 30.0
            lead.step(offset + rate * world.t)
            until = (lead._until - offset) / rate
            if led[name] and led[name][-1][1] > world.t:
                led[name][-1][1] = max(until, world.t)
            elif until > world.t:
                led[name].append([world.t, until])
            world.sleep(RETRY_SECONDS * own.uniform(1.0, 2.2) / rate)
        world.leave()

    threads = [threading.Thread(target=life, args=(name, chance.random())) for name in led]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(CEILING_SECONDS)
    spans = sorted((start, end, name) for name, several in led.items() for start, end in several)
    assert sum(end - start for start, end, _ in spans) > 200.0, "somebody leads most of the time"
    assert len({name for _, _, name in spans}) > 1, "the lease changes hands"
    for (_, end, one), (start, _, other) in pairwise(spans):
        assert one == other or end <= start, f"{one} leads until {end}, {other} from {start}"


def test_two_processes_with_a_real_api_one_leads_and_the_other_follows_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lease that is not given back would be waited for, and one that is held is not lost on a busy machine.
    monkeypatch.setattr(lease, "LEASE_SECONDS", 3600.0)
    monkeypatch.setattr(lease, "RENEW_SECONDS", 2400.0)
    monkeypatch.setattr(lease, "RETRY_SECONDS", 0.1)
    kubernetes_validate: Any = pytest.importorskip("kubernetes_validate")
    (tmp_path / "token").write_text("good")
    with serving(Kube()) as kube:
        server = KubernetesEndpoint(url=kube.url, token_file=str(tmp_path / "token"), timeout_seconds=CEILING_SECONDS)
        apis = [KubernetesClient(server), KubernetesClient(server)]
        one = Elector(Leadership(apis[0], NAME, SPACE, "one"))
        two = Elector(Leadership(apis[1], NAME, SPACE, "two"))
        one.start()
        assert wait_for(lambda: one.leads)
        two.start()
        assert kube.leases[NAME]["spec"]["holderIdentity"] == "one"
        kubernetes_validate.validate(kube.leases[NAME], kubernetes_validate.latest_version(), strict=True)
        assert not two.leads
        one.stop()
        assert not one.leads
        assert wait_for(lambda: two.leads), "given back, it need not lapse"
        two.stop()
        assert kube.leases[NAME]["spec"]["holderIdentity"] == ""
        assert kube.leases[NAME]["spec"]["leaseTransitions"] == 1
        for api in apis:
            api.close()
