"""torch's own class beside the reader's, with our words to each statement.

The text is that of torch 2.13, stored in torch_sampler.txt word for word; torch_license.txt is the licence under which
it may be. So the page is the same on every machine; `differences` says where the installed class has other statements.
"""

from __future__ import annotations

import ast
import html
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib.show.style import GREY, INK, MUTED, TRACK
from support.kit.source import source_of
from support.kit.stub import untouched

HERE = Path(__file__).parent
STORED = (HERE / "torch_sampler.txt").read_text(encoding="utf-8")
LICENSE = (HERE / "torch_license.txt").read_text(encoding="utf-8")
ORIGIN = (
    "DistributedSampler of torch 2.13, from torch/utils/data/distributed.py, without docstrings and comments. "
    "© the PyTorch contributors, under the BSD licence below."
)

#: What a statement does, known by a piece of it that is in no other, in the order in which they are looked for.
WORDS = {
    "get_world_size": "W was not given: ask the process group. Without a group this raises ValueError.",
    "get_rank": "The same for the rank. So in a job that has a group both may be left out.",
    "rank < 0": "There is no such rank. Without these lines rank W would stop in its first pass, at the last check, "
    "if it had a share at all; rank −1 only if a share is more than one sample.",
    "self.num_samples = math.ceil": "With drop_last, where W does not divide N: "
    "(N − W) / W rounded up, which is N / W rounded down. Otherwise round N / W up. "
    "This happens once, here: N must not change afterwards.",
    "self.total_size =": "Positions that are dealt, a multiple of W.",
    "self.epoch = epoch": "Only a note. The next __iter__ reads it; the pass that runs does not.",
    "torch.randperm": "Shuffle: a generator of its own, seeded with seed + epoch, the same on every rank. "
    "tolist() makes N Python ints on every rank.",
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


def methods_of(text: str, name: str = "DistributedSampler") -> dict[str, ast.FunctionDef]:
    """Return the methods of a class in a text, by name."""
    for part in ast.parse(text).body:
        if isinstance(part, ast.ClassDef) and part.name == name:
            return {inside.name: inside for inside in part.body if isinstance(inside, ast.FunctionDef)}
    raise ValueError(f"the text has no class {name}")


def statements_of(method: ast.FunctionDef, text: str) -> Iterator[tuple[str, str]]:
    """Yield the statements of a method with what they do, without docstring and comments; neighbours alike joined.

    text: that of the file. The words are "" for a statement that WORDS does not know.
    """
    lines = text.splitlines()
    gathered: list[tuple[list[str], str]] = []
    for node in method.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        of_node = lines[node.lineno - 1 : node.end_lineno]
        own = [line[8:].partition("  # ")[0] for line in of_node if not line.lstrip().startswith("#")]
        words = next((words for piece, words in WORDS.items() if piece in "\n".join(own)), "")
        if gathered and gathered[-1][1] == words:
            gathered[-1][0].extend(own)
        else:
            gathered.append((own, words))
    yield from (("\n".join(own), words) for own, words in gathered)


def differences(installed: type) -> list[str]:
    """Name the methods in which an installed class has other statements than the stored one."""
    stored = methods_of(STORED)
    found = []
    for name in METHODS:
        text = textwrap.dedent(inspect.getsource(getattr(installed, name)))
        if _bare(ast.parse(text).body[0]) != _bare(stored[name]):
            found.append(name)
    return found


def _bare(method: ast.AST) -> list[str]:
    """Return the statements of a method as Python prints them, without its docstring."""
    body: list[ast.stmt] = method.body  # type: ignore[attr-defined]
    texts = [
        node for node in body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    return [ast.unparse(node) for node in texts]


class Beside:
    """Show torch's statements, our words, and the reader's own code; and the licence under which they stand here."""

    def __init__(self, *mine: Any) -> None:
        self.mine = mine

    def _repr_html_(self) -> str:
        code = f"margin:0;white-space:pre-wrap;word-break:normal;font-size:11px;line-height:1.4;color:{INK}"
        cell = (
            f"padding:4px 8px;vertical-align:top;text-align:left;line-height:1.4;border-top:1px solid {GREY}"
        )
        rows = []
        for name, method in methods_of(STORED).items():
            heading = f'<th colspan="2" scope="rowgroup" style="{cell};background:{TRACK}">{name}</th>'
            rows.append(f"<tr>{heading}</tr>")
            for text, words in statements_of(method, STORED):
                theirs = f'<td style="{cell}"><pre style="{code}">{html.escape(text)}</pre></td>'
                rows.append(f'<tr>{theirs}<td style="{cell};width:38%">{html.escape(words)}</td></tr>')
        mine = html.escape("\n\n".join(map(_shown, self.mine)))
        look = "border-collapse:collapse;font-size:13px;background:white"
        return (
            f'<div style="background:white;color:{INK};display:flex;flex-wrap:wrap;gap:16px;padding:8px">'
            f'<div style="flex:2 1 600px"><p style="color:{MUTED};margin:0 0 6px">{ORIGIN}</p>'
            f'<table style="{look}">{"".join(rows)}</table></div>'
            f'<div style="flex:1 1 300px"><b>Yours</b><pre style="{code}">{mine}</pre></div>'
            f'<details style="flex:1 1 100%"><summary style="color:{INK}">The licence</summary><pre style="{code}">'
            f"{html.escape(LICENSE)}</pre></details></div>"
        )

    def __repr__(self) -> str:
        return "torch's DistributedSampler, statement by statement"


def _shown(part: Any) -> str:
    own = vars(part)
    stub = untouched(part) if inspect.isfunction(part) else all(untouched(own[name]) for name in METHODS)
    return f"# {part.__name__}: not written yet" if stub else source_of(part)
