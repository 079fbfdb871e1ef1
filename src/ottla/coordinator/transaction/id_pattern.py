"""Regular expressions that peers send: matched in linear time, and a bounded number of steps at a time. Pure.

Python's own matcher backtracks: a pattern like `(a+)+b` keeps it busy for years, and with it the event loop. Kafka uses
RE2 for the same reason. Here Python's parser reads a pattern, which becomes a nondeterministic automaton; its sets of
states are the states of a deterministic one, which are computed when they are needed.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

PATTERN_CHARACTERS_MAX = 1000
STATES_MAX = 1000
"""The most states of an automaton. A repetition like `x{500}` takes 500."""
CACHED_MAX = 500
"""The most sets of states whose successors are cached."""
STEPS_AT_ONCE = 4000
"""About a millisecond of work."""

Test = Callable[[str], bool]


class PatternError(ValueError):
    """A pattern that is not a regular expression, or needs more than an automaton."""


class IdPattern:
    """A pattern that whole texts are matched with."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            raise PatternError(f"a pattern of {len(pattern)} characters (at most {PATTERN_CHARACTERS_MAX})")
        automaton = _Automaton(pattern)
        self._edges = automaton.edges
        self._empty = automaton.empty
        self._accepting = automaton.accepting
        self._start = self._closure([automaton.start], at_start=True)
        self._successors: dict[frozenset[int], dict[str, frozenset[int]]] = {}

    def fullmatch(self, text: str) -> bool:
        matching = self.match(text)
        while (found := matching.advance()) is None:
            pass
        return found

    def match(self, text: str) -> "Matching":
        return Matching(self, text)

    # For Matching

    @property
    def start(self) -> frozenset[int]:
        return self._start

    def successor(self, states: frozenset[int], character: str) -> tuple[frozenset[int], int]:
        """The states after a character, and what it took to find them."""
        known = self._successors.get(states)
        if known is None:
            if len(self._successors) >= CACHED_MAX:
                self._successors.clear()
            known = self._successors[states] = {}
        after = known.get(character)
        if after is not None:
            return after, 1
        if len(known) >= CACHED_MAX:
            known.clear()
        after = self._closure(
            [target for state in states for test, target in self._edges.get(state, ()) if test(character)]
        )
        known[character] = after
        return after, 1 + 2 * len(states) + len(after)

    def accepts(self, states: frozenset[int], *, is_empty_text: bool) -> bool:
        return self._accepting in self._closure(states, at_start=is_empty_text, at_end=True)

    def _closure(self, states: Iterable[int], *, at_start: bool = False, at_end: bool = False) -> frozenset[int]:
        """These states, and those that are reached from them without a character."""
        found = set(states)
        waiting = list(found)
        while waiting:
            for target, needs in self._empty.get(waiting.pop(), ()):
                if target not in found and (not needs or (needs == "^" and at_start) or (needs == "$" and at_end)):
                    found.add(target)
                    waiting.append(target)
        return frozenset(found)


class Matching:
    """One text that is being matched."""

    def __init__(self, pattern: IdPattern, text: str) -> None:
        self._pattern = pattern
        self._text = text
        self._at = 0
        self._states = pattern.start

    def advance(self) -> bool | None:
        """Whether the text matches; None if that is not known yet: call it again."""
        pattern, text, at, states = self._pattern, self._text, self._at, self._states
        steps = 0
        while at < len(text) and states:
            if steps >= STEPS_AT_ONCE:
                self._at, self._states = at, states
                return None
            states, cost = pattern.successor(states, text[at])
            steps += cost
            at += 1
        return bool(states) and pattern.accepts(states, is_empty_text=not text)


class _Automaton:
    """Built from a pattern as parsed by Python."""

    def __init__(self, pattern: str) -> None:
        # The parser is a private module, but there is no other one, and tests cover what is used of it.
        from re import _constants, _parser  # type: ignore[attr-defined]

        try:
            parsed = _parser.parse(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(str(error)) from None
        flags = parsed.state.flags & ~re.UNICODE
        if flags & ~(re.IGNORECASE | re.DOTALL):
            raise PatternError("only the flags i and s are supported")
        self._names = _constants
        self._ignores_case = bool(flags & re.IGNORECASE)
        self._dot_is_all = bool(flags & re.DOTALL)
        self.edges: dict[int, list[tuple[Test, int]]] = {}
        self.empty: dict[int, list[tuple[int, str]]] = {}
        """Where a state leads without a character: anywhere, or only at the start (^) or the end ($) of the text."""
        self._count = 0
        self.start = self._new()
        try:
            self.accepting = self._add(parsed, self.start)
        except RecursionError:
            raise PatternError("groups are nested too deeply") from None

    def _new(self) -> int:
        self._count += 1
        if self._count > STATES_MAX:
            raise PatternError(f"it needs more than {STATES_MAX} states")
        return self._count

    def _link(self, source: int, target: int, needs: str = "") -> None:
        self.empty.setdefault(source, []).append((target, needs))

    def _add(self, items: Any, state: int) -> int:
        """Adds a sequence behind `state`; the state behind the sequence."""
        for name, argument in items:
            state = self._add_one(name, argument, state)
        return state

    def _add_one(self, name: Any, argument: Any, state: int) -> int:
        c = self._names
        after = self._new()
        if name in (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN):
            self.edges.setdefault(state, []).append((self._test(name, argument), after))
        elif name is c.BRANCH:
            for branch in argument[1]:
                first = self._new()
                self._link(state, first)
                self._link(self._add(branch, first), after)
        elif name is c.SUBPATTERN:
            _, added, removed, body = argument
            if added or removed:
                raise PatternError("flags of a group are not supported")
            self._link(self._add(body, state), after)
        elif name in (c.MAX_REPEAT, c.MIN_REPEAT):
            least, most, body = argument
            self._repeat(least, most, body, state, after)
        elif name is c.AT and argument in (c.AT_BEGINNING, c.AT_BEGINNING_STRING):
            self._link(state, after, "^")
        elif name is c.AT and argument in (c.AT_END, c.AT_END_STRING):
            self._link(state, after, "$")
        else:
            raise PatternError(f"{str(name).lower()} is not supported")
        return after

    def _repeat(self, least: int, most: int, body: Any, state: int, after: int) -> None:
        if least > STATES_MAX:
            raise PatternError(f"it repeats something {least} times (at most {STATES_MAX})")
        for _ in range(least):
            state = self._add(body, self._linked(state))
        if most is self._names.MAXREPEAT:
            loop = self._linked(state)
            self._link(self._add(body, loop), loop)
            self._link(loop, after)
            return
        if most - least > STATES_MAX:
            raise PatternError(f"it repeats something {most} times (at most {STATES_MAX})")
        for _ in range(most - least):
            self._link(state, after)
            state = self._add(body, self._linked(state))
        self._link(state, after)

    def _linked(self, state: int) -> int:
        fresh = self._new()
        self._link(state, fresh)
        return fresh

    def _test(self, name: Any, argument: Any) -> Test:
        c = self._names
        if name is c.ANY:
            return (lambda _: True) if self._dot_is_all else (lambda character: character != "\n")
        if name is c.IN:
            return self._cased(_one_of(argument, c))
        literal = chr(argument)
        matches = self._cased(lambda character: character == literal)
        return matches if name is c.LITERAL else (lambda character: not matches(character))

    def _cased(self, test: Test) -> Test:
        if not self._ignores_case:
            return test
        return lambda character: test(character) or test(character.lower()) or test(character.upper())


def _one_of(items: Any, c: Any) -> Test:
    """A set of characters."""
    is_negated, tests = False, []
    for name, argument in items:
        if name is c.NEGATE:
            is_negated = True
        elif name is c.LITERAL:
            tests.append(_between(argument, argument))
        elif name is c.RANGE:
            tests.append(_between(*argument))
        else:
            tests.append(_CATEGORIES[str(argument)])
    return lambda character: any(test(character) for test in tests) != is_negated


def _between(first: int, last: int) -> Test:
    return lambda character: first <= ord(character) <= last


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CATEGORIES: dict[str, Test] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_NOT_DIGIT": lambda character: not character.isdecimal(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda character: not character.isspace(),
    "CATEGORY_WORD": _is_word,
    "CATEGORY_NOT_WORD": lambda character: not _is_word(character),
}
