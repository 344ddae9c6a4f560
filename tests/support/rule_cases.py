"""Rows of the tables of cases for rules: minutes of a tier, and what a rule says of them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from golden_text import check_golden
from judging_samples import answered, minutes
from outcomes import Wanted

from rules.evaluator import rule_evaluation
from rules.plan.load_bins import TierContext
from rules.replicas.starts import ReplicaStart
from rules.telemetry.windows import Window
from rules.telemetry.wording import split_claim
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

TITLE_WORDS, SENTENCE_WORDS, CLAIM_WORDS, FACT_WORDS, ACTION_WORDS = 8, 25, 14, 20, 20

SECOND_SENTENCE = re.compile(r"[a-z0-9%)]\. [A-Z]")


def count_words(text: str) -> int:
    """Return the number of words. A sign that stands alone is no word."""
    return sum(any(sign.isalnum() for sign in word) for word in text.split())


def sentence_faults(text: str) -> Iterator[str]:
    """Yield what is wrong with the sentence of a verdict or the text of an unknown."""
    if count_words(text) > SENTENCE_WORDS:
        yield f"{count_words(text)} words, at most {SENTENCE_WORDS}: {text}"
    claim, _ = split_claim(text)
    if count_words(claim) > CLAIM_WORDS:
        yield f"claim of {count_words(claim)} words, at most {CLAIM_WORDS}: {claim}"
    if SECOND_SENTENCE.search(text) or text.endswith("."):
        yield f"more than one sentence: {text}"
    yield from _form_faults(text)


def fact_faults(text: str, most: int = FACT_WORDS) -> Iterator[str]:
    """Yield what is wrong with a detail, a piece of evidence or an action."""
    if count_words(text) > most:
        yield f"{count_words(text)} words, at most {most}: {text}"
    yield from _form_faults(text)


def _form_faults(text: str) -> Iterator[str]:
    if text != text.strip() or "  " in text or " ," in text or " ;" in text:
        yield f"odd spaces: {text!r}"


def explain(verdict: Verdict) -> str:
    """Return the sentence and the details of a verdict."""
    return "; ".join((verdict.sentence, *verdict.details))


def result_faults(result: Verdict | Unknown) -> tuple[str, ...]:
    """Return what is wrong with the texts of a result."""
    if isinstance(result, Unknown):
        found = sentence_faults(result.text)
    else:
        evidence = (text for cause in result.causes for text in (*cause.evidence, *cause.against))
        facts = (*result.details, *evidence, *result.actions)
        found = chain(sentence_faults(result.sentence), *map(fact_faults, facts))
    return tuple(f"{result.rule}: {fault}" for fault in found)


def rule_faults(rule: Rule) -> tuple[str, ...]:
    """Return what is wrong with the texts of a row of the catalogue."""
    found = list(chain(*(fact_faults(text, ACTION_WORDS) for text in rule.actions)))
    if count_words(rule.title) > TITLE_WORDS or split_claim(rule.title)[1]:
        found.append(f"a title is a name of at most {TITLE_WORDS} words: {rule.title}")
    for sentence in re.split(r"(?<=[.:;]) ", rule.meaning):
        found.extend(fact_faults(sentence))
    return tuple(f"{rule.name}: {fault}" for fault in found)


@dataclass(frozen=True)
class Case:
    """Minutes of a tier, and what a rule says of them."""

    name: str
    tier: TierContext
    replicas: Mapping[str, Iterable[Window]] | list[Window]
    wanted: Wanted
    starts: tuple[ReplicaStart, ...] = ()

    def __str__(self) -> str:
        return self.name


def judge(rule: str, case: Case) -> RuleResult:
    """What the rule says at the end of a case, by the way of the daemon."""
    if not case.starts:
        return answered(rule, case.tier, case.replicas)
    assert isinstance(case.replicas, list)
    booked = replace(minutes(case.tier, {"a": case.replicas}), starts=case.starts)
    results = rule_evaluation.evaluate_tier_rules(booked, case.tier, booked.binned[-1].window.end)
    return next(result for result in results if result.rule == rule)


def outcome(result: RuleResult) -> Wanted:
    """Status and certainty, or the gap. What fires says what to do, and nothing else does."""
    if isinstance(result, Unknown):
        return result.reason
    assert bool(result.actions) is (result.status is not Status.OK)
    return result.status, result.certainty


def words(result: RuleResult) -> str:
    return result.text if isinstance(result, Unknown) else explain(result)


def check_result(result: RuleResult, wanted: Wanted, text: str = "") -> None:
    """Compare a result with what is wanted, and its words with the text that they contain."""
    assert outcome(result) == wanted, result
    assert text in words(result)


def check_case(rule: str, case: Case) -> None:
    check_result(judge(rule, case), case.wanted)


def check_words(test: str, results: Iterable[tuple[object, RuleResult]]) -> None:
    """Compare the words of results, each under the name of its case, with the golden file of a test's file."""
    name = f"{Path(test).stem.removeprefix('test_')}.txt"
    check_golden(test, name, "\n".join(f"{case}: {words(result)}" for case, result in results))


def judge_cases(cases: Iterable[tuple[str, Case]]) -> Iterator[tuple[str, RuleResult]]:
    """Yield what each rule says of its case, under the name of both."""
    return ((f"{rule}, {case}", judge(rule, case)) for rule, case in cases)


def list_cases(tables: Mapping[str, Iterable[Case]]) -> list[tuple[str, Case]]:
    """The cases of several rules, each with its rule."""
    return [(rule, case) for rule, cases in tables.items() for case in cases]
