"""What the trials of notebook 06 say of a right answer that real ranks, which are sent its text alone, can't run."""

from __future__ import annotations

from typing import Any

from support.kit.judged import Trial
from support.ranks import unknown_to_a_rank


def sent_alone(trial: Trial, *sent: str) -> Trial:
    """Make a trial that refuses what is right but needs more than a rank is sent; `sent`: names that it gets beside."""

    def tried(answer: Any) -> str:
        fault = trial(answer)
        if fault:
            return fault
        parts = answer if isinstance(answer, tuple) else (answer,)
        of_cells = [part for part in parts if part.__module__ == "__main__"]
        for part in of_cells:
            unknown = unknown_to_a_rank(part, *sent)
            if unknown:
                return (
                    f"right on imitated ranks, but a real rank would not know {unknown}: it gets the text of "
                    f"{part.__name__}; import or define {unknown} inside."
                )
        return ""

    return tried
