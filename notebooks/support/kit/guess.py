"""A prediction of a notebook with its truth: it is commented on, and never fails.

Guess   a prediction that a notebook asks for
Tried   what tests tell a Guess: a right value, a wrong one, and what its notebook knows
guess   the comment itself
letter  reads a guess that is one letter or word
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from support.kit.stub import is_missing
from support.kit.values import as_it_is, near, short
from support.kit.verdict import Verdict


@dataclass(frozen=True)
class Tried:
    """How a Guess is tried in tests. known: what the notebook passes beside the guess, in the same order."""

    right: Any
    wrong: Any
    known: tuple[Any, ...] = ()


def guess(
    my_guess: object, truth: Any, *, what: str, unit: str = "", tolerance: float = 0.0, why: str = ""
) -> Verdict:
    """Comment on a prediction; never fails, whatever the guess is.

    `what` names the quantity, `truth` is its value (computed by the notebook, not typed), `tolerance` a share of the
    truth that still counts as hit, `why` says where this guess comes from. A long guess is clipped, `why` never.
    None, the stub's value, gets a reminder and does not give the answer away.
    """
    if is_missing(my_guess):
        return Verdict(
            "note",
            f"No guess yet for {what}. Put one in place of None: a wrong guess teaches more than none.",
        )
    shown = f"{short(truth)}{' ' + unit if unit else ''}"
    if isinstance(my_guess, str) and not isinstance(truth, str):
        with suppress(ValueError):  # a number between quotation marks
            my_guess = float(my_guess.removesuffix(unit))
    said = f"You said {short(my_guess)}{f' ({why})' if why else ''}"
    try:
        hit = my_guess == truth or near(my_guess, truth, tolerance)
        if hit is True:
            return Verdict("note", f"{said}: that is it, {what} = {shown}.")
        if near(my_guess, truth, max(0.25, 2 * tolerance)):
            return Verdict("note", f"{said}: close, {what} = {shown}.")
    except Exception:  # a guess may be anything, also what cannot be compared: it is only a guess
        pass
    return Verdict("note", f"{said}; {what} = {shown}. Read on for the reason.")


@dataclass(frozen=True, eq=False, repr=False)
class Guess:
    """A prediction that a notebook asks for. Call it with the guess, and with what the notebook knows, if `truth` asks.

    what   names the quantity: a text, or a function of the same arguments as `truth`
    truth  computes it
    read   makes guesses equal that mean the same: "b " and "B"
    said   what to say of a famous wrong guess, by its text, also of a tuple: {"3": "why", "(1, 8)": "why"}
    unit and tolerance: as in `guess`
    tried  with what tests ask it; every guess of a room has it
    """

    what: str | Callable[..., str]
    truth: Callable[..., Any]
    unit: str = ""
    tolerance: float = 0.0
    read: Callable[[Any], Any] = as_it_is
    said: Mapping[str, str] = field(default_factory=dict)
    tried: Tried | None = None

    def __call__(self, my_guess: object, *known: Any, **named: Any) -> Verdict:
        """Comment on a guess; never fails because of it."""
        what = self.what if isinstance(self.what, str) else self.what(*known, **named)
        mine = self.read(my_guess)
        truth = self.truth(*known, **named)
        why = self.said.get(str(mine), "") if isinstance(mine, (str, tuple)) else ""
        return guess(mine, truth, what=what, unit=self.unit, tolerance=self.tolerance, why=why)


def letter(my_guess: object) -> object:
    """Read a guess that is one letter or word: capitals and spaces at the ends do not matter."""
    return my_guess.strip().upper() if isinstance(my_guess, str) else my_guess
