"""Case 11 of notebook 16: texts packed into a row that is then read as if it were one text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lib.text import plural
from support.kit.mistakes import edited
from support.n16.casebook import ROUNDED, case, scalar_of, unfinished, with_evidence
from support.n16.counted import with_looks_counted
from support.n16.rank import Stand
from support.n16.series import ends_of_trials

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="var-annotated"
# ruff: noqa: D103


def job_11(dist, texts, row_length, embedding, places):
    rows = [[]]
    for text in texts:
        if sum(map(len, rows[-1])) + len(text) > row_length:
            rows.append([])
        rows[-1].append(text)
    total = 0.0
    count = 0
    for row in rows:
        tokens = torch.cat(row)
        text = torch.repeat_interleave(torch.tensor([len(text) for text in row]))
        position = torch.cat([torch.arange(len(text)) for text in row])
        x = embedding[tokens] + places[position]
        allowed = torch.ones(len(tokens), len(tokens)).tril().bool() & (text[:, None] == text)
        scores = x @ x.T / x.shape[1] ** 0.5
        x = x + scores.masked_fill(~allowed, float("-inf")).softmax(dim=1) @ x
        predicted = x[:-1] @ embedding.T
        inside = text[1:] == text[:-1]
        total += F.cross_entropy(predicted[inside], tokens[1:][inside], reduction="sum").item()
        count += int(inside.sum())
    print(f"{len(texts)} texts in {len(rows)} rows: loss {total / count:.4f}")
    return total / count, len(rows)


_TEXT = ("        text = torch.repeat_interleave(torch.tensor([len(text) for text in row]))\n", "")
_POSITION = (
    "torch.cat([torch.arange(len(text)) for text in row])",
    "torch.arange(len(tokens))",
)
_MASK = (" & (text[:, None] == text)", "")
_BORDERS = (
    "        inside = text[1:] == text[:-1]\n",
    "",
    "predicted[inside], tokens[1:][inside]",
    "predicted, tokens[1:]",
    "int(inside.sum())",
    "len(tokens) - 1",
)
_ACROSS = tuple(zip(_BORDERS[::2], _BORDERS[1::2], strict=True))


def sick_11():
    """Return the job as the notebook has it."""
    return edited(job_11, _TEXT, _POSITION, _MASK, *_ACROSS)


#: 28 pairs of two of the texts, of 512 · 512 tokens each; and the first token of each text but one is predicted.
FORECAST_11 = (28 * 512 * 512, 7)


#: More than tokens in a row, so that what is asked of all words is known from a look at tokens.
WORDS = 50


def drawn_11(seed: int, lengths: Sequence[int]) -> dict[str, Any]:
    """Return texts of these lengths, and the tables of a model, float64; two neighbours of one length are one text."""
    random = torch.Generator().manual_seed(seed)
    texts = [torch.randint(WORDS, (length,), generator=random) for length in lengths]
    for at in range(1, len(texts)):
        if lengths[at] == lengths[at - 1]:
            texts[at] = texts[at - 1].clone()
    embedding = torch.randn(WORDS, 6, generator=random, dtype=torch.float64)
    places = torch.randn(sum(lengths), 6, generator=random, dtype=torch.float64)
    return {"texts": texts, "embedding": embedding, "places": places}


#: Seed, lengths, length of a row.
TRIALS = (
    (1, (5, 4, 6, 3), 10),
    (2, (9, 2, 2, 3, 7, 1, 5), 16),
    (3, (4, 4), 4),
    (4, (3, 8, 2, 6, 6), 40),
    (5, (4, 4, 3, 3, 2, 5), 7),
    (6, (4, 1, 4), 4),
)


def fault_of_11(job: Callable[..., Any]) -> str:
    """Run it with each of the trials; the loss must be that of the texts, each read alone."""
    name = job.__code__.co_name
    trials = [
        {"name": name, **drawn_11(seed, lengths), "row_length": length} for seed, lengths, length in TRIALS
    ]
    found = ends_of_trials(with_looks_counted, 1, trials, job)
    for (_, lengths, length), trial, stands in zip(TRIALS, trials, found, strict=False):
        where = f"with texts of {', '.join(map(str, lengths))} tokens and rows of {length}"
        due = loss_of_each_alone(trial["texts"], trial["embedding"], trial["places"])
        said = unfinished(where, stands) or _fault_of_loss(where, stands[0], due, lengths, length)
        if said:
            return with_evidence(said, found)
    return ""


def _fault_of_loss(where: str, stand: Stand, due: float, lengths: Sequence[int], row_length: int) -> str:
    rows = _rows(lengths, row_length)
    got, looks = stand.value
    loss, many = map(scalar_of, got) if isinstance(got, tuple) and len(got) == 2 else (None, None)
    if not isinstance(loss, (int, float)) or not isinstance(many, (int, float)):
        return f"{where} the job returned {got!r}; it should return the loss and the number of rows."
    if many > rows:
        return f"{where} it takes {many} rows, where {rows} are enough."
    if not abs(float(loss) - due) < ROUNDED * due:
        return f"{where} the loss is {loss:.8f}; each text read alone, it is {due:.8f}."
    if len(looks) > many:
        return f"{where} tokens look back in {len(looks)} pieces, where it says {plural(int(many), 'row')}."
    if max(looks, default=0) > row_length:
        return f"{where} {max(looks)} tokens are read at once; a row holds {row_length} at most."
    if looks and max(looks) * rows < sum(lengths):
        whole = f"of {sum(lengths)} in {rows} rows, one row has more."
        return f"{where} no more than {max(looks)} tokens are read at once; {whole}"
    return ""


def _rows(lengths: Sequence[int], row_length: int) -> int:
    rows = 1
    used = 0
    for length in lengths:
        if used + length > row_length:
            rows += 1
            used = 0
        used += length
    return rows


def loss_of_each_alone(texts: Sequence[Tensor], embedding: Tensor, places: Tensor) -> float:
    """Return the mean loss over all predicted tokens of texts that are each read alone."""
    total = 0.0
    for text in texts:
        x = embedding[text] + places[: len(text)]
        scores = x @ x.T / x.shape[1] ** 0.5
        later = torch.ones(len(text), len(text)).triu(1).bool()
        read = x + scores.masked_fill(later, float("-inf")).softmax(dim=1) @ x
        total += F.cross_entropy(read[:-1] @ embedding.T, text[1:], reduction="sum").item()
    return total / sum(len(text) - 1 for text in texts)


check_job_11 = case(
    11,
    job_11,
    FORECAST_11,
    fault_of_11,
    "the loss is that of texts read alone, in as few rows as before.",
    {
        "A row is read as one text.": sick_11(),
        "A token sees its own text only now, and its place is counted from the start of the row.": edited(
            job_11, _POSITION
        ),
        "Mask and places are right; the end of a text still predicts the beginning of the next.": edited(
            job_11, *_ACROSS
        ),
        "Places begin anew, and nothing is predicted across a border; tokens still see the texts before.": edited(
            job_11, _MASK
        ),
        "The mask is right; the places and the predictions across borders are not.": edited(
            job_11, _POSITION, *_ACROSS
        ),
        "Places begin anew; that alone hides nothing from anybody.": edited(job_11, _MASK, _TEXT, *_ACROSS),
        "Nothing is predicted across a border; what is predicted still sees the texts before.": edited(
            job_11, _POSITION, _MASK
        ),
        "A token sees what comes after it, which it is to predict.": edited(job_11, (".tril()", "")),
        "The texts are read one by one: that they lie in rows saves nothing.": edited(
            sick_11(),
            ("    for row in rows:\n        tokens = torch.cat(row)\n", "    for tokens in texts:\n"),
        ),
        "A row for each text needs no mask, and packs nothing.": edited(
            sick_11(), ("sum(map(len, rows[-1])) + len(text) > row_length", "rows[-1]")
        ),
    },
    {
        "Each pair of texts counts once: a token does not see what comes after it.": (
            56 * 512 * 512,
            7,
        ),
        "These are the pairs within the texts, which are right.": (8 * 512 * 513 // 2, 7),
        "The first text of the row has none before it that would predict its first token.": (
            28 * 512 * 512,
            8,
        ),
    },
)
"""Case 11: (job_11, forecast_11)."""
