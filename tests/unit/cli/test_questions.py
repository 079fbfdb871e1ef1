"""What commands ask before they destroy something, and how they read values from a fixed set."""

import sys

import pytest
import typer

from ottla.cli.session import check_known, confirm
from ottla.errors import OttlaError


def on_terminal(monkeypatch: pytest.MonkeyPatch, answer: bool) -> list[str]:
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        return answer

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", ask)
    return asked


def test_a_question_follows_what_it_is_about_and_no_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    asked = on_terminal(monkeypatch, False)
    with pytest.raises(typer.Exit) as ended:
        confirm("Delete?", False, lambda: shown.extend(["orders", *asked]))
    assert ended.value.exit_code == 1
    assert (shown, asked) == (["orders"], ["Delete?"])
    asked = on_terminal(monkeypatch, True)
    confirm("Delete?", False)
    assert asked == ["Delete?"]


def test_nothing_is_asked_or_shown_with_yes_or_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    asked = on_terminal(monkeypatch, False)
    confirm("Delete?", True, lambda: shown.append("orders"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    confirm("Delete?", False, lambda: shown.append("orders"))
    assert (shown, asked) == ([], [])


def test_values_are_known_in_any_case_and_a_similar_one_is_suggested() -> None:
    assert check_known("--state", ["stable", "EMPTY"], ("Stable", "Empty")) == ["Stable", "Empty"]
    with pytest.raises(OttlaError, match="unknown value stabel for --state") as caught:
        check_known("--state", ["Empty", "stabel"], ("Stable", "Empty"))
    assert caught.value.hint == "Did you mean stable?"
    with pytest.raises(OttlaError) as caught:
        check_known("--state", ["gone"], ("Stable", "Empty"))
    assert caught.value.hint == "use one of Stable, Empty"
