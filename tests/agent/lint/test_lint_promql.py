"""PromQL as plain records."""

from __future__ import annotations

import pytest

from agent.lint.expressions import Aggregate, Binary, Call, Number, Selector, Subquery, names, walk
from agent.lint.promql import MAX_CHARACTERS, BadExpression, parse


def test_every_kind_of_expression_becomes_its_record() -> None:
    found = parse('sum by (le) (rate(vllm:x_bucket{a=~"b|c", d!="e"}[5m])) > bool 2')
    assert isinstance(found, Binary)
    assert (found.op, found.to_bool) == (">", True)
    assert isinstance(found.left, Aggregate)
    assert (found.left.op, found.left.labels, found.left.without) == ("sum", ("le",), False)
    call = found.left.inner
    assert isinstance(call, Call)
    assert call.name == "rate"
    (selector,) = call.arguments
    assert isinstance(selector, Selector)
    assert (selector.name, selector.ranged) == ("vllm:x_bucket", True)
    assert [(m.label, m.op, m.value) for m in selector.matchers] == [("a", "=~", "b|c"), ("d", "!=", "e")]


def test_constants_come_to_one_number_and_brackets_are_gone() -> None:
    found = parse("(x) > (0.9 * 100)")
    assert isinstance(found, Binary)
    assert isinstance(found.left, Selector)
    assert isinstance(found.right, Number)
    assert found.right.value == 90
    assert isinstance(parse("-5"), Number)
    assert isinstance(parse("-x"), Call)


@pytest.mark.parametrize("text", ["x > 1 / 0", "x > (-8) ^ 0.5", "x > 10 ^ 1000"])
def test_constants_that_come_to_no_number_stay_as_they_are(text: str) -> None:
    found = parse(text)
    assert isinstance(found, Binary)
    assert isinstance(found.right, Binary)


def test_a_name_given_as_a_matcher_is_the_name() -> None:
    found = parse('{__name__="vllm:x", a="b"}')
    assert isinstance(found, Selector)
    assert (found.name, [m.label for m in found.matchers]) == ("vllm:x", ["a"])
    assert isinstance(parse("avg_over_time(x[1h:5m])"), Call)
    assert any(isinstance(node, Subquery) for node, _ in walk(parse("avg_over_time(x[1h:5m])")))
    assert names(parse("a / on (b) group_left (c) d")) == {"a", "d"}


def test_what_an_aggregation_keeps() -> None:
    kept = {text: parse(f"{text} (x)") for text in ("sum", "sum by (le)", "sum without (le)", "sum without (a)")}
    kept["topk"] = parse("topk(3, x)")
    told = {text: node.keeps("le") for text, node in kept.items() if isinstance(node, Aggregate)}
    assert told == {"sum": False, "sum by (le)": True, "sum without (le)": False, "sum without (a)": True, "topk": True}


@pytest.mark.parametrize(
    "text",
    [
        f"sum by (a) (rate({'x' * 90}[5m])) / sum by (a) (rate({'y' * 90}[5m]))",
        "(a or b) > 90",
        "-x",
        'quantile without (b) (0.9, x{c="d",e!~"f"})',
        "a * on (b) group_left (c) d",
        "a / ignoring (b) group_right () d",
        "a > bool on (b) c",
        'label_replace(x, "a", "$1", "b", "(.*)")',
        "x offset 5m - x @ end()",
        "max_over_time(rate(x[5m])[1h:1m])",
    ],
)
def test_the_text_of_an_expression_is_what_it_was(text: str) -> None:
    assert parse(text).text == text
    assert parse(parse(text).text) == parse(text)


@pytest.mark.parametrize("text", ["", "x >", "sum(x", "nosuchfunction(x)", "rate(x)", 'x{a="b"', "x y"])
def test_what_is_no_promql_is_told_in_the_parsers_words(text: str) -> None:
    with pytest.raises(BadExpression) as caught:
        parse(text)
    assert str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 9000 + "x" + ")" * 9000,
        "abs(" * 3000 + "x" + ")" * 3000,
        "+".join(["x"] * 9000),
        " or ".join(["x"] * 3000),
        "-" * 15_000 + "x",
        "x" * (MAX_CHARACTERS + 1),
        "abs(" * 790 + "x" + ")" * 790,
        "# don't\n" + "(" * 9000 + "x" + ")" * 9000 + "# don't",
    ],
    ids=lambda text: text[:4],
)
def test_what_is_nested_or_long_beyond_reason_is_refused(text: str) -> None:
    with pytest.raises(BadExpression, match=r"nested too deeply|longer than"):
        parse(text)


def test_many_alternatives_and_what_stands_in_quotes_are_not_beyond_reason() -> None:
    many = " or ".join(f'vllm:num_requests_running{{model_name="m{n}"}}' for n in range(300))
    assert len(names(parse(many))) == 1
    assert isinstance(parse(f'x{{a="{"(" * 2000}"}}'), Selector)
