"""What a check says: a verdict in one sentence; a cell that ends in a check shows it as a coloured line."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Literal

Status = Literal["open", "right", "wrong", "note"]
SIGN: dict[Status, str] = {"open": "○", "right": "✓", "wrong": "✗", "note": "→"}
LOOK: dict[Status, tuple[str, str]] = {
    "open": ("#9aa3ad", "#f3f4f6"),
    "right": ("#009e73", "#e6f5f0"),
    "wrong": ("#d55e00", "#fcefe6"),
    "note": ("#0072b2", "#e8f2f9"),
}


@dataclass(frozen=True)
class Verdict:
    """What a check found: `status` is "open" (not attempted), "right", "wrong" or "note" (a comment on a guess)."""

    status: Status
    message: str

    def __bool__(self) -> bool:
        return self.status == "right"

    def __repr__(self) -> str:
        return f"{SIGN[self.status]} {self.message}"

    def _repr_html_(self) -> str:
        edge, paper = LOOK[self.status]
        return (
            f'<div role="status" style="border-left:5px solid {edge};background:{paper};color:#22272e;'
            f'padding:8px 14px;border-radius:3px;max-width:60em;font-size:15px;line-height:1.5">'
            f"<b>{SIGN[self.status]}</b>&ensp;{html.escape(self.message)}</div>"
        )


def not_attempted(what: str) -> Verdict:
    """Return the neutral verdict."""
    return Verdict(
        "open", f"Not attempted yet: {what}. Fill in the stub above and run its cell and this one again."
    )
