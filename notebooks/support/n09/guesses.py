"""Predictions of notebook 09, one a section."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from threading import current_thread
from typing import Any

import torch

from lib.pipeline import clock_cycles
from support.kit.exact import exact_number
from support.kit.guess import Guess, Tried, letter
from support.n09.two_streams import simulate_streams


def _sum_of(terms: Sequence[float]) -> float:
    total = torch.zeros(())
    for term in terms:
        total = total + term
    return float(total)


def _gains_from(gains: Mapping[int, float]) -> int | str:
    enough = [*takewhile(lambda size: gains[size] >= 1.2, sorted(gains, reverse=True))]
    return enough[-1] if enough else "none of these (is a second core free?)"


def _in_a_new_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _grad_in_a_new_thread() -> str:
    with torch.no_grad():
        return "YES" if _in_a_new_thread(torch.is_grad_enabled) else "NO"


def _threads_of_backward() -> int:
    ran: set[str] = set()
    leaf = torch.ones(1, requires_grad=True)
    leaf.register_hook(lambda gradient: ran.add(current_thread().name))  # type: ignore[no-untyped-call]
    outputs = [_in_a_new_thread(lambda: leaf * 2) for _ in range(2)]
    torch.cat(outputs).sum().backward()  # type: ignore[no-untyped-call]
    return len(ran)


def _right_though_late() -> list[int]:
    values: list[tuple[int, ...]] = [(i,) for i in range(6)]
    for clock in clock_cycles(6, 2):
        # What every task of the clock computes, if it looks its pair up when the loop has ended:
        i, j = clock[-1]
        values = [(*values[i], j) if k in dict(clock) else value for k, value in enumerate(values)]
    return [i for i, value in enumerate(values) if value == (i, 0, 1)]


def _numbers(my_guess: object) -> object:
    """Read a list of numbers as it was meant: also (0, 1), {0, 1}, range(2), "0, 1", and 0 for [0]."""
    if isinstance(my_guess, str):
        return [int(digits) for digits in re.findall(r"\d+", my_guess)] or my_guess
    if isinstance(my_guess, int) and not isinstance(my_guess, bool):
        return [my_guess]
    return list(my_guess) if isinstance(my_guess, (list, tuple, set, range)) else my_guess


guess_size = Guess(
    "the size from which on two threads gain 1.2 here",
    _gains_from,
    tried=Tried(right=64, wrong=512, known=({8: 0.8, 64: 1.3, 512: 1.9},)),
)
guess_streams = exact_number(
    "the end of the last kernel",
    lambda: simulate_streams(2, kernel=3, launch=1).end,
    "ticks",
    tried=Tried(right=17, wrong=13),
)
guess_grad = Guess(
    "whether gradients are on in the new thread",
    _grad_in_a_new_thread,
    read=letter,
    tried=Tried(right="yes", wrong="no"),
)
guess_arrival = Guess(
    "whether the sum stays the same",
    lambda: "NO" if _sum_of([1e8, 1.0, -1e8]) != _sum_of([1e8, -1e8, 1.0]) else "YES",
    read=letter,
    tried=Tried(right="no", wrong="yes"),
)
guess_backward = exact_number(
    "the number of threads that ran backward",
    _threads_of_backward,
    tried=Tried(right=1, wrong=2),
)
guess_late = Guess(
    "the micro-batches that come out right",
    _right_though_late,
    read=_numbers,
    tried=Tried(right=[0], wrong=[0, 1, 2, 3, 4, 5]),
)
