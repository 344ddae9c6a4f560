from judging_samples import START, each, minute, minutes, view

from rules import watch
from rules.catalogue import RULES
from rules.slices import view as view_of
from rules.verdicts import Status, Unknown, Verdict

TIER_RULES = [
    "TtftDivergence",
    "TpotDivergence",
    "ItlDivergence",
    "GpuUtilizationShortfall",
    "PrefixHitDivergence",
    "EvictionDivergence",
    "LoadBeyondBenchmark",
    "KvEviction",
]


def test_the_daemons_names_stand_together() -> None:
    assert all(hasattr(watch, name) for name in watch.__all__)


def test_a_closed_minute_is_placed_and_comes_last() -> None:
    booked = minutes(view(), {"a": [minute(0), minute(1, rps=5.0)]})
    assert [(s.replica, s.bin, s.window.start) for s in booked.slices] == [("a", 1, START), ("a", 2, START + 60)]


def test_only_what_a_rule_still_looks_back_to_is_kept() -> None:
    booked = minutes(view(), {"a": each(40, minute), "b": each(40, minute)})
    assert max(rule.window_seconds for rule in RULES) == watch.LONGEST == 900
    assert len(booked.slices) == 2 * 16
    assert booked.slices[0].window.start == START + 24 * 60


def test_every_rule_over_load_bins_answers() -> None:
    booked = minutes(view(), {"a": each(5, minute)})
    assert [a.rule for a in watch.tier_answers(booked, view(), START + 300)] == TIER_RULES


def test_nothing_yet_is_unknown_for_every_rule() -> None:
    answers = watch.tier_answers(watch.Minutes(), view(), START)
    assert [a.text for a in answers if isinstance(a, Unknown)] == [
        f"0 s seen, {60 if rule == 'KvEviction' else 180} s are needed" for rule in TIER_RULES
    ]


def test_a_firing_answer_is_explained() -> None:
    booked = minutes(view(), {"a": each(5, lambda n: minute(n, slow=18))})
    found = next(a for a in watch.tier_answers(booked, view(), START + 300) if a.rule == "TtftDivergence")
    assert isinstance(found, Verdict)
    assert found.status is Status.WARNING
    assert found.causes


def test_another_plan_places_the_same_minutes_anew() -> None:
    booked = minutes(view(), {"a": [minute(0, rps=3.0), minute(1, rps=7.0)]})
    assert [s.bin for s in booked.slices] == [1, None]
    higher = view({}, {}, {"completed_rps": 8.0})
    assert [s.bin for s in watch.placed_anew(booked, higher).slices] == [1, 2]
    bare = watch.placed_anew(booked, view_of("t", None))
    assert [(s.bin, s.replica, s.outside) for s in bare.slices] == [(None, "a", ""), (None, "a", "")]
