"""Cases 5 to 12 of notebook 16: repairs of other kinds are right, and what is sick shows it."""

import pytest
import torch

from support.kit.mistakes import edited
from support.n16 import (
    case_half_the_memory,
    case_less_to_keep,
    case_longer_rows,
    case_more_rows,
    case_nobody_is_slow,
    case_smaller_card,
    case_three_cuts,
    case_three_sevenths,
)
from support.n16.counted import with_largest_noted
from support.n16.rank import Stand
from support.n16.series import ends_of_trials
from tests.sizes import size
from tests.support.n16.test_casebook import NAME, stored, tree

CASES = {
    5: case_smaller_card,
    6: case_more_rows,
    7: case_half_the_memory,
    8: case_three_cuts,
    9: case_three_sevenths,
    10: case_nobody_is_slow,
    11: case_longer_rows,
    12: case_less_to_keep,
}
RIGHT = {number: getattr(case, f"job_{number}") for number, case in CASES.items()}
SICK = {number: getattr(case, f"sick_{number}")() for number, case in CASES.items() if number != 9}
CHECKS = {number: getattr(case, f"check_job_{number}") for number, case in CASES.items()}
WORLDS_5 = case_smaller_card.TRIALS


@pytest.fixture(autouse=True, scope="module")
def two_worlds():
    """Try a job on two numbers of ranks in the suite, on all to prove."""
    kept = {case: case.TRIALS for case in CASES.values()}
    for case, trials in kept.items():
        whole = isinstance(trials, tuple)
        case.TRIALS = size(suite=trials[:2] if whole else dict([*trials.items()][:2]), prove=trials)
    yield
    for case, trials in kept.items():
        case.TRIALS = trials


@pytest.mark.parametrize("number", CASES)
def test_the_notebook_has_the_sick_job_and_its_solution_the_right_one(number):
    sick = SICK.get(number, RIGHT[number])
    assert stored(NAME)[f"job_{number}"] == tree(sick)
    assert stored(f"solutions/{NAME}")[f"job_{number}"] == tree(RIGHT[number])


# ---- repairs of other kinds

COUNTED_LATER = (
    ("F.cross_entropy(weight[before], after) / len(parts)", 'F.cross_entropy(weight[before], after, reduction="sum")'),
    ("        weight.grad /= world\n",
     "        tokens = torch.tensor(sum(len(text) - 1 for text in mine))\n        dist.all_reduce(tokens)\n"
     "        weight.grad /= tokens\n"),
)  # fmt: skip
WEIGHED = (
    ('F.cross_entropy(weight[before], after, reduction="sum") / count',
     "F.cross_entropy(weight[before], after) * (len(after) / count)"),  # of a whole number and a tensor: a float32
)  # fmt: skip
MEAN_PRINTED = (
    ("            total += loss.item()\n",
     "            mean = F.cross_entropy(weight[before], after)\n            total += mean.item() / len(parts)\n"),
)  # fmt: skip
PADDED = (
    ("            before = torch.cat([text[:-1] for text in part])\n"
     "            after = torch.cat([text[1:] for text in part])\n",
     "            pad = nn.utils.rnn.pad_sequence(part, batch_first=True)\n"
     "            real = torch.arange(1, pad.shape[1]) < torch.tensor([[len(text)] for text in part])\n"),
    ('F.cross_entropy(weight[before], after, reduction="sum") / count',
     'F.cross_entropy(weight[pad[:, :-1]].mT, pad[:, 1:], reduction="none")[real].sum() / count'),
)  # fmt: skip
OWN_GENERATOR = (
    ("    optimizer =", "    own = torch.Generator().manual_seed(1000 * seed + rank)\n    optimizer ="),
    ("rows.shape[1])\n            loss", "rows.shape[1], generator=own)\n            loss"),
)
NOISE_OF_ALL = (("torch.randn(len(mine), rows.shape[1])", "torch.randn(len(batch), rows.shape[1])[rank::world]"),)
NOISE_OF_A_ROW = (
    ("torch.randn(len(mine), rows.shape[1])",
     "torch.stack([torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(\n"
     "                (seed * 1000 + epoch) * len(rows) + int(row))) for row in mine])"),
)  # fmt: skip
TORCHS_OWN = (
    ("    torch.manual_seed(seed)\n",
     "    from torch.utils.checkpoint import checkpoint\n\n    torch.manual_seed(seed)\n"),
    ("Recomputed.apply(block, x, *block.parameters())",
     "checkpoint(block, x, use_reentrant=False)"),
)  # fmt: skip
BACK_AGAIN = (
    ("            with torch.random.fork_rng(devices=[]), torch.enable_grad():\n",
     "            now = torch.get_rng_state()\n            with torch.enable_grad():\n"),
    ("            out.backward(gradient)", "            torch.set_rng_state(now)\n            out.backward(gradient)"),
)  # fmt: skip
NOT_CALLED = (
    ("            return block(x)", "            return block.forward(x)"),
    ("ctx.block(x)", "ctx.block.forward(x)"),
)
ONE_BY_ONE = (
    ("                out = ctx.block(x)\n",
     "                out = x\n                for module in ctx.block:\n                    out = module(out)\n"),
)  # fmt: skip
GATHERED = (
    ("        nn.utils.clip_grad_norm_(stage.parameters(), max_norm)\n",
     "        squares = [None] * world\n"
     "        dist.all_gather_object(squares, sum(p.grad.square().sum().item() for p in stage.parameters()))\n"
     "        for parameter in stage.parameters():\n"
     "            parameter.grad *= min(1.0, max_norm / sum(squares) ** 0.5)\n"),
)  # fmt: skip
NORMS = (
    ("        nn.utils.clip_grad_norm_(stage.parameters(), max_norm)\n",
     "        own = nn.utils.get_total_norm([p.grad for p in stage.parameters()])\n"
     "        norms = [torch.zeros(()) for _ in range(world)]\n        dist.all_gather(norms, own)\n"
     "        nn.utils.clip_grads_with_norm_(stage.parameters(), max_norm, torch.stack(norms).norm())\n"),
)  # fmt: skip
IN_ORDER = (("reversed(kept)", "kept"), ("* len(part) / len(rows)", "* (len(part) / torch.tensor(len(rows)))"))
BLOCKS = (
    ("    mine = order[rank::world]\n", "    size = world * batch_size\n"),
    ("mine[start : start + batch_size] for start in range(0, len(mine), batch_size)",
     "order[start : start + size][rank::world] for start in range(0, len(order), size)"),
)  # fmt: skip
OF_THE_EPOCH = (
    (
        "        real = padded",
        "        random = torch.Generator().manual_seed(1000 * seed + epoch)\n        real = padded",
    ),
)
BLOCK_DIAGONAL = (
    ("torch.ones(len(tokens), len(tokens)).tril().bool() & (text[:, None] == text)",
     "torch.block_diag(*[torch.ones(len(each), len(each)).tril() for each in row]).bool()"),
)  # fmt: skip
FORWARD = "            if sent:\n                sent.pop().wait()  # what it sends is kept as long as it is\n"
ONE_BEFORE = "            while len(sent) > 1:\n                sent.pop(0).wait()\n"
BOTH_GO_ON = (("dist.send(x.grad, rank - 1)", f"sent.append(dist.isend(x.grad, rank - 1))\n{ONE_BEFORE}"),)
GRADIENTS_GO_ON = (
    (FORWARD, ""), ("sent.append(dist.isend(y.detach(), rank + 1))", "dist.send(y.detach(), rank + 1)"), *BOTH_GO_ON,
    (" / micro_batches\n", " * torch.tensor(1 / micro_batches)\n"),
)  # fmt: skip
TENSORS = (
    ("sorted(range(len(lengths)), key=lambda text: lengths[text])", "torch.tensor(lengths).argsort()"),
    ("[mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]", "mine.split(batch_size)"),
)
SOFTMAX = 'scores.masked_fill(~allowed, float("-inf")).softmax(dim=1)'
OF_F = ((SOFTMAX, 'F.softmax(scores.masked_fill(~allowed, float("-inf")), dim=1)'),)
BY_NAME = ((f"{SOFTMAX} @ x", "F.scaled_dot_product_attention(query=x, key=x, value=x, attn_mask=allowed)"),)
LOSS_BY_SOFTMAX = (
    ('F.cross_entropy(predicted[inside], tokens[1:][inside], reduction="sum").item()',
     "-predicted[inside].softmax(dim=1).gather(1, tokens[1:][inside][:, None]).log().sum().item()"),
)  # fmt: skip

REPAIRS = {
    "5 divided behind the sum": (5, edited(SICK[5], *COUNTED_LATER)),
    "5 means weighed by tokens": (5, edited(RIGHT[5], *WEIGHED)),
    "5 a mean for the print besides": (5, edited(RIGHT[5], *MEAN_PRINTED)),
    "5 padded, and the padding left out": (5, edited(RIGHT[5], *PADDED)),
    "6 a generator of the rank": (6, edited(SICK[6], *OWN_GENERATOR)),
    "6 the noise of all, and a share of it": (6, edited(SICK[6], *NOISE_OF_ALL)),
    "6 the noise of a row": (6, edited(SICK[6], *NOISE_OF_A_ROW)),
    "7 torch's own": (7, edited(SICK[7], *TORCHS_OWN)),
    "7 set and set back": (7, edited(RIGHT[7], *BACK_AGAIN)),
    "7 a block's forward": (7, edited(RIGHT[7], *NOT_CALLED)),
    "7 one part of a block after the other": (7, edited(RIGHT[7], *ONE_BY_ONE)),
    "8 squares gathered": (8, edited(SICK[8], *GATHERED)),
    "8 norms gathered": (8, edited(SICK[8], *NORMS)),
    "9 backward in the order of forward": (9, edited(RIGHT[9], *IN_ORDER)),
    "10 blocks of all ranks": (10, edited(RIGHT[10], *BLOCKS)),
    "10 a generator of the epoch": (10, edited(SICK[10], *OF_THE_EPOCH)),
    "11 a block for each text": (11, edited(RIGHT[11], *BLOCK_DIAGONAL)),
    "10 tensors for lists": (10, edited(RIGHT[10], *TENSORS)),
    "11 softmax of F": (11, edited(RIGHT[11], *OF_F)),
    "11 attention by name": (11, edited(RIGHT[11], *BY_NAME)),
    "11 a loss by softmax": (11, edited(RIGHT[11], *LOSS_BY_SOFTMAX)),
    "12 both go on": (12, edited(RIGHT[12], *BOTH_GO_ON)),
    "12 only gradients go on": (12, edited(RIGHT[12], *GRADIENTS_GO_ON)),
}


@pytest.mark.parametrize("repair", REPAIRS)
def test_another_repair_is_right(repair):
    number, job = REPAIRS[repair]
    verdict = CHECKS[number](job, CHECKS[number].reference[1])
    assert verdict, verdict.message


@pytest.mark.parametrize("trial", case_longer_rows.TRIALS)
def test_a_loss_may_be_rounded_to_single_precision(trial):
    seed, lengths, length = trial
    due = case_longer_rows.loss_of_each_alone(**case_longer_rows.drawn_11(seed, lengths))
    rounded = torch.tensor(due).nextafter(torch.tensor(torch.inf))
    rows = case_longer_rows._rows(lengths, length)
    stand = Stand("done", ((rounded, rows), []))
    assert not case_longer_rows._fault_of_loss("here", stand, due, lengths, length)


def test_each_rank_has_a_text_where_rounding_up_leaves_one_without(monkeypatch):
    monkeypatch.setattr(case_smaller_card, "TRIALS", WORLDS_5)
    share = "-(-len(texts) // world)"
    job = edited(
        RIGHT[5],
        ("texts[rank::world]", f"texts[rank * {share} : (rank + 1) * {share}]"),
        (
            "        dist.all_reduce(weight.grad)\n",
            "        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad\n"
            "        dist.all_reduce(weight.grad)\n",
        ),
    )
    assert "rank 2 computes no token" in CHECKS[5](job, CHECKS[5].reference[1]).message


@pytest.mark.parametrize("number", CASES)
def test_what_returns_something_else_is_told_so(number):
    def job(dist, *given, **named):
        return "forty-two"

    verdict = CHECKS[number](edited_name(job, number), CHECKS[number].reference[1])
    assert verdict.status == "wrong"
    assert "'forty-two'" in verdict.message


def edited_name(job, number):
    job.__name__ = f"job_{number}"
    return job


# ---- trials in a series


def test_a_trial_that_hangs_is_told_by_its_own_lines_and_who_has_ended_it_has_ended():
    def job(dist, waits):
        if dist.get_rank() == waits:
            dist.recv(torch.zeros(1), 1 - waits)
        return waits

    stands = ends_of_trials(job, 2, [{"waits": 5}, {"waits": 1}, {"waits": 5}])
    assert [[stand.value for stand in trial] for trial in stands[:-1]] == [[5, 5]]
    assert len(stands) == 2
    assert [stand.told for stand in stands[1]] == [
        "has ended",
        "stands (line 3: `dist.recv(torch.zeros(1), 1 - waits)`)",
    ]


def test_a_rank_that_waits_in_what_counts_for_us_is_told_by_the_line_that_called_it():
    def job(dist, waits):
        if dist.get_rank() == waits:
            dist.all_reduce(torch.zeros(()), dist.ReduceOp.MAX)

    stands = ends_of_trials(with_largest_noted, 2, [{"name": "job", "waits": 0}], job)
    assert [stand.told for stand in stands[0]] == [
        "stands (line 3: `dist.all_reduce(torch.zeros(()), dist.ReduceOp.MAX)`)",
        "has ended",
    ]


def test_a_trial_that_raises_is_the_last():
    def job(dist, raises):
        if raises:
            raise ValueError("no")
        return dist.get_world_size()

    stands = ends_of_trials(job, 1, [{"raises": False}, {"raises": True}, {"raises": False}])
    assert stands[0][0].value == 1
    assert [stand.told for stand in stands[1]] == ['raised ValueError: no (line 3: `raise ValueError("no")`)']
    assert len(stands) == 2
