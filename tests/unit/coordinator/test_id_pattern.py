"""Patterns of peers match what Python's do, but no pattern and no text can keep the event loop busy."""

import random
import re

import pytest

from ottla.coordinator.transaction.id_pattern import IdPattern, PatternError
from tests.support.seeds import base_seed

PATTERNS = [
    "", "a", "abc", ".*", "orders-.*", "orders-[0-9]+", r"orders-\d+", r"\w+-\w*", "a|b", "a|bc|", "(a|b)*c", "a?b+c*",
    "a{2}", "a{2,}", "a{1,3}b", "[^a]b", "[^a-c]*", "(ab)+", "(?:ab|c){2}", "^a.*b$", "a$", "^", "$", "a^b", r"\.",
    "a.c", "(?i)AbC", "(?i)[a-c]+", "(?s)a.c", "a.*?b", "(a*)*", "(a+)+b", "(a|a)*b", "((a?){3}){2}", r"\Aab\Z",
    "[]a]+", "x*x*x*y", r"[\d_]+", r"\S+\s\S+", "(?P<name>a)b", "é+",
]  # fmt: skip


def test_every_pattern_matches_what_pythons_matches() -> None:
    rng = random.Random(base_seed())
    texts = ["", "\n", "a\n", "abc", "orders-17", "ORDERS-17", "a.c", "a\nc", "ab ab", "éé", "a_b-c_1"]
    texts += ["".join(rng.choices("abcxy01-. ", k=rng.randrange(12))) for _ in range(300)]
    for pattern in PATTERNS:
        ours, theirs = IdPattern(pattern), re.compile(pattern)
        for text in texts:
            # Python's $ also matches before a line break at the end; nothing else does that.
            if not ("$" in pattern and text.endswith("\n")):
                assert ours.fullmatch(text) == bool(theirs.fullmatch(text)), (pattern, text)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a|aa)+$b", "(.*)*x", "x*x*x*x*x*x*x*x*y", "(a?){100}a{100}b", "(.*a){12}c"]
)
def test_a_hostile_pattern_takes_linear_time_in_short_steps(pattern: str) -> None:
    compiled = IdPattern(pattern)
    steps = {}
    for length in (1000, 10_000):
        matching, steps[length] = compiled.match("a" * length), 0
        while (found := matching.advance()) is None:
            steps[length] += 1
        assert not found
    assert steps[10_000] <= 20 * (steps[1000] + 1)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "missing"),
        ("a{2000}", "at most 1000"),
        ("(a{100}){100}", "more than 1000 states"),
        ("(((a{1,50}){1,50}){1,50}){1,50}", "more than 1000 states"),
        (r"(a)\1", "not supported"),
        ("(?=a)a", "not supported"),
        (r"\ba", "not supported"),
        ("(?i:a)", "not supported"),
        ("(?x)a", "flags"),
        ("a" * 1001, "1001 characters"),
    ],
)
def test_a_pattern_that_needs_more_is_rejected(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        IdPattern(pattern)


def test_deeply_nested_groups_are_matched_or_rejected() -> None:
    for depth in (10, 100, 490):
        try:
            assert IdPattern("(" * depth + "a" + ")" * depth).fullmatch("a")
        except PatternError:
            assert depth > 50


def test_a_text_with_many_different_characters_does_not_fill_the_memory() -> None:
    compiled = IdPattern("[^a]*b")
    assert compiled.fullmatch("".join(map(chr, range(200, 20_000))) + "b")
