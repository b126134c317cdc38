"""torch's own class beside the reader's, its statements retold in our words; nothing of its text is ever stored."""

from __future__ import annotations

import ast
import html
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from lib.show.explore import WIDGET_VIEW
from lib.show.style import GREY, INK, MUTED, TRACK

#: What a statement does, known by a piece of it that is in no other, in the order in which they are looked for.
WORDS = {
    "get_world_size": "W was not given: ask the process group. Without a group this raises ValueError.",
    "get_rank": "The same for the rank. So in a job that has a group both may be left out.",
    "rank < 0": "A rank outside 0..W − 1 would quietly read another rank's share, or none.",
    "self.num_samples = math.ceil": "Cut and W does not divide N: round (N − W) / W up, which is N / W rounded down. "
    "Otherwise round N / W up. This happens once, here: N must not change afterwards.",
    "self.total_size =": "Positions that are dealt, a multiple of W.",
    "self.epoch = epoch": "Only a note. The next __iter__ reads it; the one that runs does not.",
    "torch.randperm": "Shuffle: a generator of its own, seeded with seed + epoch, the same on every rank. "
    "tolist() makes N Python ints on every rank: 32 bytes each, plus 8 in the list and 8 in the tensor.",
    "padding_size": "Pad with the head of the order. The second branch is for more padding than samples, N < W / 2: "
    "the head, again and again. With drop_last: cut the tail.",
    "does not match total_size": "A check of itself: padding or cutting came out right.",
    "does not match num_samples": "A check of itself: so did the slice.",
    "indices[self.rank": "The slice: start at the rank, hop W positions.",
    "iter(indices)": "The share is complete now: a later set_epoch cannot change this pass.",
    "return self.num_samples": "What a DataLoader asks for its own length: the share, not the dataset.",
    "self.epoch = 0": "The epoch begins at 0.",
    "self.": "Kept as it was given.",
}
METHODS = ("__init__", "__iter__", "__len__", "set_epoch")


def statements_of(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Yield the statements of a function with what they do, without docstring and comments; neighbours alike joined.

    The words are "" for a statement that WORDS does not know: torch may have changed since it was written.
    """
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    body = ast.parse("\n".join(lines)).body[0].body  # type: ignore[attr-defined]
    gathered: list[tuple[list[str], str]] = []
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        text = (
            line for line in lines[node.lineno - 1 : node.end_lineno] if not line.lstrip().startswith("#")
        )
        own = [line[4:].partition("  # ")[0] for line in text]
        words = next((words for piece, words in WORDS.items() if piece in "\n".join(own)), "")
        if gathered and gathered[-1][1] == words:
            gathered[-1][0].extend(own)
        else:
            gathered.append((own, words))
    yield from (("\n".join(own), words) for own, words in gathered)


class Beside:
    """Show, in a live notebook, torch's statements, our words, and the reader's code; stored are the words alone."""

    def __init__(self, theirs: type, *mine: Any) -> None:
        self.theirs = theirs
        self.mine = mine

    def page(self, live: bool) -> str:
        """Return the table as HTML; live: with the code."""
        code = f"margin:0;white-space:pre-wrap;word-break:normal;font-size:11px;line-height:1.4;color:{INK}"
        cell = (
            "padding:4px 8px;vertical-align:top;text-align:left;line-height:1.4;border-top:1px solid " + GREY
        )
        rows = []
        for name in METHODS:
            heading = f'<th colspan="2" scope="rowgroup" style="{cell};background:{TRACK}">{name}</th>'
            rows.append(f"<tr>{heading}</tr>")
            for text, words in statements_of(getattr(self.theirs, name)):
                shown = f'<pre style="{code}">{html.escape(text)}</pre>' if live else "·"
                told = html.escape(words or "Not in the torch for which this was written.")
                wide = f"{cell};width:{38 if live else 97}%"
                rows.append(f'<tr><td style="{cell}">{shown}</td><td style="{wide}">{told}</td></tr>')
        dots = ". The code stands at the dots when you run this cell; it is not stored in the file"
        note = f"torch's class on this machine, and what each statement does{'' if live else dots}."
        look = "border-collapse:collapse;font-size:13px;background:white"
        mine = html.escape("\n".join(map(_source, self.mine))) if live else ""
        right = (
            f'<div style="flex:1 1 300px"><b>Yours</b><pre style="{code}">{mine}</pre></div>' if live else ""
        )
        return (
            f'<div style="background:white;color:{INK};display:flex;flex-wrap:wrap;gap:16px;padding:8px">'
            f'<div style="flex:2 1 600px"><p style="color:{MUTED};margin:0 0 6px">{note}</p>'
            f'<table style="{look}">{"".join(rows)}</table></div>{right}</div>'
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        import ipywidgets

        widget = ipywidgets.HTML(self.page(live=True))  # what a widget shows is not stored by `make save`
        view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
        data = {WIDGET_VIEW: view, "text/plain": "torch's DistributedSampler, statement by statement"}
        return data if "google.colab" in sys.modules else {**data, "text/html": self.page(live=False)}


def _source(part: Any) -> str:
    own = vars(part)
    functions = [part] if inspect.isfunction(part) else [own[name] for name in METHODS if name in own]
    return "\n".join(textwrap.dedent(inspect.getsource(function)) for function in functions)
