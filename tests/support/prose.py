"""Limits of the texts of the catalogue: titles, sentences, details, evidence, actions (prose rules of the project)."""

import re
from collections.abc import Iterator
from itertools import chain

from rules.telemetry.wording import split_claim
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import Unknown, Verdict

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
