"""Wrong answers that a reader has written to the cases of notebook 16: all are refused, and told nothing untrue."""

import pytest

from support.kit.mistakes import edited
from support.kit.source import source_of
from support.n16 import (
    case_four_numbers,
    case_good_at_home,
    case_higher_curve,
    case_less_to_keep,
    case_longer_rows,
    case_more_rows,
    case_nobody_is_slow,
    case_smaller_card,
    case_three_cuts,
    case_three_sevenths,
)
from support.n16.checks import check_job_1

CASES = {
    2: case_four_numbers,
    3: case_higher_curve,
    5: case_smaller_card,
    6: case_more_rows,
    8: case_three_cuts,
    9: case_three_sevenths,
    10: case_nobody_is_slow,
    11: case_longer_rows,
    12: case_less_to_keep,
}


@pytest.fixture(autouse=True, scope="module")
def one_world():
    """Try a job on the first number of ranks, which finds all of these."""
    kept = {case: case.TRIALS for case in CASES.values()}
    for case, trials in kept.items():
        case.TRIALS = trials if isinstance(trials, tuple) else dict([*trials.items()][:1])
    yield
    for case, trials in kept.items():
        case.TRIALS = trials


def body_behind(job, start):
    """Return the text of a job from this line on."""
    text = source_of(job)
    return text[text.index(start) :]


def body_between(job, start, end):
    text = source_of(job)
    return text[text.index(start) : text.index(end)]


NOISE = "torch.randn(len(mine), rows.shape[1])"
MEAN = "                dist.all_reduce(parameter.grad)\n                parameter.grad /= world\n"
AT_END = (
    '    print(f"the gradient',
    '    for parameter in model.parameters():\n        dist.broadcast(parameter.data, 0)\n    print(f"the gradient',
)
PARTS = "mine[start : start + micro_batch] for start in range(0, len(mine), micro_batch)"
BATCHES = "mine[start : start + batch_size] for start in range(0, len(mine), batch_size)"
BY_RANDOM = "torch.randperm(len(batches), generator=random).tolist()"
DEALT = "    mine = order[rank::world]\n    batches = [" + BATCHES + "]\n"
NEIGHBOURS = (
    "    every = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]\n"
    "    batches = every[rank::world]\n"
)
TOTAL = (
    "        gradients = [parameter.grad for parameter in stage.parameters()]\n"
    "        square = nn.utils.get_total_norm(gradients) ** 2\n"
    "        dist.all_reduce(square)\n"
    "        nn.utils.clip_grads_with_norm_(stage.parameters(), max_norm, square.sqrt())\n"
)
LESS = (
    "    return (right / seen).item()",
    "    extra = seen - len(dataset)\n    return ((right - extra) / (seen - extra)).item()",
)
FIRST_F = (
    "        backward(i)\n        if ahead + i < micro_batches:\n            forward(ahead + i)\n",
    "        if ahead + i < micro_batches:\n            forward(ahead + i)\n        backward(i)\n",
)

SEEDED = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
SHARED = (
    (SEEDED, f"{SEEDED}    own = torch.Generator().manual_seed(seed + 100 + rank)\n"),
    (NOISE, f"0.8 * {NOISE} + 0.6 * torch.randn(len(mine), rows.shape[1], generator=own)"),
)
MADE_UP = (
    '    print(f"{len(done)}',
    "    ahead = min(micro_batches, world - rank)\n"
    '    done = [("F", i) for i in range(ahead)]\n'
    "    for i in range(micro_batches):\n"
    '        done.append(("B", i))\n'
    "        if ahead + i < micro_batches:\n"
    '            done.append(("F", ahead + i))\n'
    '    print(f"{len(done)}',
)
NORMED = "nn.utils.clip_grads_with_norm_(stage.parameters(), max_norm, square.sqrt())"
SQUARES = "if square > max_norm:\n            torch._foreach_mul_(gradients, max_norm / square.sqrt())"
BODY_8 = body_behind(case_three_cuts.job_8, "    stage = nn.Sequential")
BODY_12 = body_between(case_less_to_keep.job_12, "    stage = layers", "    print")
ALONE_8 = """\
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(rows), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return [p.detach() for layer in layers[rank * each : (rank + 1) * each] for p in layer.parameters()]
"""
WHOLE_12 = """\
    stage = layers[rank]
    F.mse_loss(nn.Sequential(*layers)(rows), targets).backward()
"""
LATE = (
    ("            dist.send(x.grad, rank - 1)\n", "            late.append(x.grad)\n"),
    ("    sent = []\n", "    sent = []\n    late = []\n"),
    (
        "            forward(ahead + i)\n    for",
        "            forward(ahead + i)\n        if rank > 0:\n            dist.send(late.pop(0), rank - 1)\n    for",
    ),
)
ONE_BEFORE = "            if sent:\n                sent.pop().wait()  # what it sends is kept as long as it is\n"
DROPPED = (("sent.append(dist.isend(y.detach(), rank + 1))", "dist.isend(y.detach(), rank + 1)"),)

#: Case, edits of the sick job or of the right one, what is said, and what would be false of it.
ANSWERS = {
    "6 a seed that is a factor": (
        6,
        1,
        [(SEEDED, f"{SEEDED}    torch.manual_seed(seed * (rank + 1))\n")],
        "and seed 0 row",
        "",
    ),
    "6 the rank alone": (
        6,
        1,
        [(SEEDED, f"{SEEDED}    torch.manual_seed(rank)\n")],
        "draws the same noise with seed 1 and with seed 0",
        "",
    ),
    "6 the seed left out": (
        6,
        1,
        [
            (
                NOISE,
                "torch.stack([torch.randn(rows.shape[1], generator=torch.Generator().manual_seed("
                "epoch * len(rows) + int(row))) for row in mine])",
            )
        ],
        "has the same noise in epoch 0 with seed 1 and with seed 0",
        "",
    ),
    "6 a hash of text": (
        6,
        1,
        [(SEEDED, f'{SEEDED}    torch.manual_seed(hash(f"{{seed}}-{{rank}}") % 2**31)\n')],
        "a second run with the same seed ends with other weights",
        "",
    ),
    "8 all layers on each": (
        8,
        0,
        [("layers[rank * each : (rank + 1) * each]", "layers")],
        "rank 0 returned 8 tensors, where its stage of 2 layers has 4",
        "tensor(",
    ),
    "6 a part of it shared": (6, 1, SHARED, "of rank 0 and that of rank 1 go together", ""),
    "6 stretched": (6, 1, [(NOISE, f"{NOISE} * (1 + 0.05 * rank)")], "go together: their correlation is 1.00", ""),
    "6 moved": (6, 1, [(NOISE, f"{NOISE} + 0.1 * rank - 0.05")], "go together: their correlation is 1.00", ""),
    "6 columns rolled": (6, 1, [(NOISE, f"{NOISE}.roll(rank, 1)")], "108 of the 216 numbers drawn", ""),
    "5 all on rank 0": (
        5,
        0,
        [
            ("texts[rank::world]", "texts if rank == 0 else []"),
            (
                "        dist.all_reduce(weight",
                "        weight.grad = 0 * weight.detach() if rank else weight.grad\n        dist.all_reduce(weight",
            ),
        ],
        "rank 1 computes no token",
        "",
    ),
    "5 in single precision": (5, 0, [("float64", "float32")], "ends with weights of torch.float32", "from those"),
    "5 parts weighed by their texts": (
        5,
        1,
        [("/ len(parts)", "* len(part) / len(mine)")],
        "That weighs a part by its texts",
        "A token of a short part",
    ),
    "3 a bias of its own": (
        3,
        0,
        [("    return model", "    model.bias.data += rank\n    return model")],
        "the bias is 1",
        "",
    ),
    "3 no bias": (3, 0, [("return model.state_dict()", 'return {"weight": model.weight}')], "no bias in it", ""),
    "8 each the whole": (
        8,
        0,
        [(BODY_8, ALONE_8)],
        "rank 0 runs layers 12 times, where a stage of 2 does so 6 times",
        "",
    ),
    "9 chunks": (9, 0, [("tensor_split(micro_batches)", "chunk(micro_batches)")], "a rank makes 5 forwards, not 6", ""),
    "9 an isend dropped": (9, 0, [("dist.send(torch.cat", "dist.isend(torch.cat")], "is gone before anybody", "`raise"),
    "11 by content": (
        11,
        0,
        [
            (
                "torch.tensor([len(text) for text in row]))\n",
                "torch.tensor([len(text) for text in row]))\n"
                "        text = torch.tensor([hash(tuple(row[i].tolist())) % 2**40 for i in text.tolist()])\n",
            )
        ],
        "each text read alone",
        "",
    ),
    "12 made up": (
        12,
        0,
        [("ahead = min(micro_batches, world - rank)", "ahead = micro_batches"), MADE_UP],
        "its layer has done FFFFFFF",
        "",
    ),
    "12 each the whole": (12, 0, [(BODY_12, WHOLE_12), MADE_UP], "its layer has done", ""),
    "12 gradients sent later": (12, 0, LATE, "ticks, a tick for each task", ""),
    "12 all waited for in the end": (12, 0, [(ONE_BEFORE, "")], "It keeps 6 of what isend has returned", ""),
    "12 nothing let go": (12, 0, [("kept.pop(0)", "kept[i]")], "rank 0 has 7 outputs", "isend"),
    "12 a handle dropped": (12, 0, DROPPED, "is gone before anybody", "`raise"),
    "6 each trains alone": (6, 0, [(MEAN, "                pass\n"), AT_END], "from those of one process", ""),
    "6 noise not in the loss": (6, 0, [("rows[mine] + noise", "rows[mine]")], "from those of one process", ""),
    "6 the sum": (6, 0, [("parameter.grad /= world", "pass")], "from those of one process", ""),
    "6 noise around a half": (6, 0, [(NOISE, f"{NOISE} + 0.5")], "has a mean of 0.", ""),
    "6 the other sign": (6, 1, [(NOISE, f"{NOISE} * (-1) ** rank + 1e-6 * rank")], "with the other sign", ""),
    "5 a part of all": (5, 0, [(PARTS, "mine")], "tokens at once", ""),
    "5 everything on each": (5, 0, [("texts[rank::world]", "texts")], "together", "A token of a short part"),
    "3 all rows on each": (3, 0, [("batch[rank::world]", "batch")], "its part is", ""),
    "10 the seed times the epoch": (
        10,
        0,
        [
            (
                "        real = padded",
                "        random = torch.Generator().manual_seed(seed * epoch)\n        real = padded",
            )
        ],
        "with 96 texts, batches of 4 and seed 0 rank 0 has its batches in the same order in epochs 0 and 1",
        "",
    ),
    "10 one text each": (10, 0, [(BATCHES, "[text] for text in mine")], "are enough for its texts", ""),
    "10 twice the size": (
        10,
        0,
        [(BATCHES, "mine[start : start + 2 * batch_size] for start in range(0, len(mine), 2 * batch_size)")],
        "where the batch size is",
        "",
    ),
    "10 rotated": (
        10,
        0,
        [(BY_RANDOM, "[(b + epoch + 1) % len(batches) for b in range(len(batches))]")],
        "in the order of their lengths, but for one place at most",
        "from short to long",
    ),
    "10 sorted but for two pairs": (
        10,
        0,
        [
            (
                BY_RANDOM,
                "(lambda o: [*o[1::-1], *o[2:-2], *o[:-3:-1]])(list(range(len(batches))))[:: 1 - 2 * (epoch % 2)]",
            )
        ],
        "steps from length to length",
        "from short to long",
    ),
    "10 another order than it says": (
        10,
        0,
        [
            (
                "manual_seed(seed)\n    seen = []",
                "manual_seed(1000 * seed + rank)\n    seen = []\n    plan = torch.Generator().manual_seed(seed)",
            ),
            (
                "        for number in",
                "        said = torch.randperm(len(batches), generator=plan).tolist()\n        for number in",
            ),
            ("seen.append((epoch, batch))", "seen.append((epoch, batches[said.pop()]))"),
        ],
        "says that it has a batch of",
        "",
    ),
    "10 longest first": (
        10,
        0,
        [(BY_RANDOM, "reversed(range(len(batches)))")],
        "in the order of their lengths",
        "from short to long",
    ),
    "10 one seed for all": (10, 0, [("manual_seed(seed)", "manual_seed(5)")], "the same order with seed 1 as with", ""),
    "10 a seed of the epoch": (
        10,
        1,
        [("        real = padded", "        random = torch.Generator().manual_seed(epoch)\n        real = padded")],
        "in epoch 0 in the same order with seed 1 as with seed 0",
        "",
    ),
    "10 neighbours cut first": (10, 0, [(DEALT, NEIGHBOURS)], "on 2 ranks with 76 texts", ""),
    "10 neighbours, and a rest dropped": (
        10,
        0,
        [(DEALT, NEIGHBOURS.replace("every[rank::world]", "every[: len(every) // world * world][rank::world]"))],
        "comes 0 times",
        "",
    ),
    "2 rounded": (
        2,
        0,
        [("(right / seen).item()", "round((right / seen).item(), 4)")],
        "rank 0 says 0.63640000; one process says 0.63636364",
        "",
    ),
    "11 one by one": (
        11,
        1,
        [("    for row in rows:\n        tokens = torch.cat(row)\n", "    for tokens in texts:\n")],
        "pieces",
        "",
    ),
    "2 less the duplicates": (2, 1, [LESS], "one process says", "dropout"),
    "2 full batches only": (
        2,
        0,
        [("sampler=sampler)", "sampler=sampler, drop_last=True)")],
        "one process says",
        "Two equal rows",
    ),
    "8 over the ranks": (8, 1, [("max_norm)\n", "max_norm / world)\n")], "from those of one stage", "A mean"),
    "8 the squares asked": (8, 0, [(NORMED, SQUARES)], "with 2 layers and max_norm = 5.0", ""),
    "8 clipped by value": (
        8,
        0,
        [(TOTAL, "        nn.utils.clip_grad_value_(stage.parameters(), max_norm)\n")],
        "from those of one stage",
        "Without clipping",
    ),
    "9 over the ideal time": (
        9,
        0,
        [("/ end.item()", "/ (2 * micro_batches)")],
        "says that it idles for 75.000000%; it does for 42.857143%",
        "there and back",
    ),
    "9 more parts": (
        9,
        0,
        [("    clock = 0 ", "    micro_batches *= 2\n    clock = 0 ")],
        "a rank makes 8 forwards, not 4",
        "",
    ),
    "9 no time": (9, 0, [('"idle": idle}', '"idle": 0.0}')], "says that it idles for 0.000000%", "begins when"),
    "6 a share that a short batch has not": (
        6,
        1,
        [(NOISE, "torch.randn(len(batch), rows.shape[1])[rank * batch_size :][: len(mine)]")],
        "with 21 rows, 1 epoch and seed 5",
        "same noise",
    ),
    "6 whole batches only": (
        6,
        0,
        [("order.split(", "order[: len(order) // (world * batch_size) * world * batch_size].split(")],
        "some rows do not come in every epoch",
        "",
    ),
    "8 rounded": (
        8,
        0,
        [("    return [", "    stage.half().double()\n    return [")],
        "from those of one stage",
        "up to 0.000 from",
    ),
    "11 fewer rows than it has": (11, 0, [("count, len(rows)", "count, 1")], "in 2 pieces, where it says 1", ""),
    "11 all in one row": (11, 0, [("> row_length", "> 10**6")], "tokens are read at once; a row holds", ""),
    "11 one too many": (11, 0, [("> row_length", "> row_length + 1")], "8 tokens are read at once", ""),
    "12 forward first": (12, 0, [FIRST_F], "micro-batches at a time", "All forwards first"),
    "12 twice as far": (
        12,
        0,
        [("world - rank)", "2 * (world - rank))"), (ONE_BEFORE, "")],
        "micro-batches at a time",
        "All forwards first",
    ),
}


@pytest.mark.costly
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_of_a_reader_is_refused_and_told_nothing_untrue(answer):
    number, of_the_sick, changes, told, untrue = ANSWERS[answer]
    case = CASES[number]
    job = getattr(case, f"sick_{number}")() if of_the_sick else getattr(case, f"job_{number}")
    check = getattr(case, f"check_job_{number}")
    verdict = check(edited(job, *changes), check.reference[1])
    assert verdict.status == "wrong", "accepted"
    assert told in verdict.message
    assert not untrue or untrue not in verdict.message


@pytest.mark.costly
def test_two_orders_that_alternate_are_not_new_ones():
    job = edited(check_job_1.reference[0], ("1000 * epoch + rank", "1000 * (epoch % 2) + rank"))
    message = check_job_1(job, check_job_1.reference[1]).message
    assert "takes its rows in epoch 2 in the order of epoch 0" in message


FEWER = ("num_workers=workers", "num_workers=min(1, workers)")
MORE = ("num_workers=workers", "num_workers=2 * workers")


@pytest.mark.parametrize(("change", "has"), [(FEWER, "has 1 worker"), (MORE, "has 4 workers")])
def test_as_many_workers_read_as_the_job_is_given(change, has):
    job = edited(case_good_at_home.job_4, change)
    assert f"{has}, where it is given 2" in case_good_at_home.check_job_4(job, case_good_at_home.FORECAST_4).message


def test_a_tensor_of_one_number_is_a_number():
    mean = edited(case_four_numbers.job_2, ("(right / seen).item()", "right / seen"))
    verdict = case_four_numbers.check_job_2(mean, case_four_numbers.FORECAST_2)
    assert verdict, verdict.message
    loss = edited(case_longer_rows.job_11, ('"sum").item()', '"sum")'))
    verdict = case_longer_rows.check_job_11(loss, case_longer_rows.FORECAST_11)
    assert verdict, verdict.message


@pytest.mark.parametrize("given", [0.18, 0.179, 0.1795])
def test_a_share_may_be_rounded(given):
    verdict = case_three_sevenths.check_job_9(case_three_sevenths.job_9, given)
    assert verdict, verdict.message
