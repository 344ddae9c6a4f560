"""Replays of recordings, each once a process, and what they found."""

import functools

import recorded

from agent.config.files import load_plan
from agent.replay.replay import Replay, replay
from agent.sources.recording import load
from rules.verdicts.verdict import Finding


@functools.cache
def replayed(name: str, plan: str | None = None) -> Replay:
    """The replay of a recording, with a plan of the tests' folder or with none."""
    recording, problems = load(recorded.folder(name))
    assert problems == ()
    return replay(recording, load_plan(recorded.PLANS / f"{plan}.yaml") if plan else None)


def findings(done: Replay) -> dict[str, Finding]:
    """The last finding of each rule, ended or open."""
    every = [one for one in done.ended if isinstance(one, Finding)]
    return {one.rule: one for one in [*every, *(s.finding for s in done.rule_states if s.finding is not None)]}
