"""What runs in the kernel of tools.site.run: it notes what cells show and ask, and at the end draws the frames."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lib.show import explore
from lib.show.explore import Explorer
from lib.show.style import alt_text
from tools.site import atlas
from tools.site.guesses import predictions
from tools.site.named import Named, impossible, missing, named_settings, ordered_sliders
from tools.site.near import near_start
from tools.site.stops import Stops, without_dead_stops

#: The explorers that each cell showed, with the picture that stands in its outputs and its words.
shown: dict[str, list[tuple[Explorer, str, str]]] = defaultdict(list)
#: What guess.js needs of the predictions that each cell checks.
guesses: dict[str, list[dict[str, Any]]] = {}
#: Predictions that could not be exported: IPython would only print what a callback raises.
failed: list[Exception] = []
_cell = [""]


def begin(shell: Any, cells: Sequence[str], still: bool = False) -> None:
    """Note from now on which explorers each cell shows and what it predicts; `cells` are those that will run.

    still: explorers are noted, and no picture is made for an output that nobody will see. No live frame ever is.
    """
    coming = iter([*cells, ""])
    shell.events.register("pre_run_cell", lambda info: _cell.__setitem__(0, next(coming)))
    shell.events.register("post_run_cell", lambda result: _ask(result.info.raw_cell, shell.user_ns))
    formatter = shell.display_formatter.mimebundle_formatter
    formatter.for_type(Explorer, _noted if still else _shown)


def _note(explorer: Explorer) -> None:
    shown[_cell[0]].append((explorer, atlas.svg(explorer.figure), alt_text(explorer.figure)))


def _noted(explorer: Explorer, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    _note(explorer)
    return {}


def _shown(explorer: Explorer, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    _note(explorer)
    return explore.bundle(explorer.figure, SimpleNamespace(model_id=""))


def _ask(source: str, space: dict[str, Any]) -> None:
    try:
        found = predictions(source, space)
        if found:
            guesses[_cell[0]] = found
    except Exception as error:
        error.add_note(f"while the predictions of cell {_cell[0]} were exported")
        failed.append(error)


def lacking_settings(text: str, explorer: Explorer, asked: Named, stops: Stops) -> list[str]:
    """Return, in words, the settings that a text names and that a page with these stops does not have."""
    absent = missing(asked, stops)
    return [
        *impossible(text, explorer),
        *(f"{explorer.controls[name].label} {option}" for name, options in absent.items() for option in options),
    ]


def finish(
    file: str,
    texts: Mapping[str, str],
    limit: int,
    sample: int | None,
    stem: str,
    stored: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Draw the frames of all that was shown and write the fragments, and what was counted, to a file.

    texts: what the notebook says about the explorers of a cell: the settings named there are among the stops.
    stored: the words of the pictures that each cell stores, where it isn't run whole: an explorer starts as they say.
    Raises RuntimeError when an explorer draws its start otherwise than where it was shown: a cell below changed what
    it reads; and when the text names a setting that is none of the stops. Raises the error of a prediction that could
    not be exported.
    """
    for error in failed:
        raise error
    words_shown = {cell: [words for _, _, words in explorers] for cell, explorers in shown.items()}
    if stored is not None:
        for cell, told in words_shown.items():
            if not set(told) <= set(stored[cell]):
                raise RuntimeError(f"{stem}: the explorer of cell {cell} starts otherwise than is stored")
    fragments: dict[str, list[str]] = {}
    kept: list[str] = []
    settings = 0
    for cell, explorers in shown.items():
        for number, (explorer, picture, words) in enumerate(explorers):
            start, said, _ = atlas.start_of(explorer)  # as its frames will be drawn; the cell's was drawn plainly
            if said != words or start != picture:
                raise RuntimeError(
                    f"{stem}: the explorer of cell {cell} draws another start now than where it was shown"
                )
            text = texts.get(cell, "")
            asked = named_settings(text, explorer)
            ordered = ordered_sliders(text, explorer)
            stops = atlas.stops_of(explorer, limit, sample, asked, ordered)
            if sample is None and (lacking := lacking_settings(text, explorer, asked, stops)):
                raise RuntimeError(f"{stem}: the text at cell {cell} names what its explorer lacks: {lacking}")
            near = None if sample else near_start(explorer, stops, ordered)
            frames = atlas.frames_of(explorer, stops, near=near)
            stops = without_dead_stops(explorer, stops, frames.frames, asked)
            name = f"atlas-{stem[:2]}-{cell}-{number}"
            fragments.setdefault(cell, []).append(atlas.fragment(explorer, stops, frames, name, near))
            settings += atlas.shown_settings(stops, frames)
            absent = missing(asked, explorer.grid(limit))
            kept += [f"{explorer.controls[control].label} {options}" for control, options in absent.items()]
    found = {"atlases": fragments, "guesses": guesses, "settings": settings, "kept": kept, "words": words_shown}
    Path(file).write_text(json.dumps(found), encoding="utf-8")
