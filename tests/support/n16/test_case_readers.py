"""Wrong answers that a reader has written to the cases of notebook 16: all are refused, and told nothing untrue."""

import pytest

from support.kit.mistakes import edited
from support.n16 import (
    case_four_numbers,
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


NOISE = "torch.randn(len(mine), rows.shape[1])"
MEAN = "                dist.all_reduce(parameter.grad)\n                parameter.grad /= world\n"
AT_END = (
    '    print(f"the gradient',
    '    for parameter in model.parameters():\n        dist.broadcast(parameter.data, 0)\n    print(f"the gradient',
)
PARTS = "mine[start : start + micro_batch] for start in range(0, len(mine), micro_batch)"
BATCHES = "mine[start : start + batch_size] for start in range(0, len(mine), batch_size)"
BY_RANDOM = "torch.randperm(len(batches), generator=random).tolist()"
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

#: Case, edits of the sick job or of the right one, what is said, and what would be false of it.
ANSWERS = {
    "6 each trains alone": (6, 0, [(MEAN, "                pass\n"), AT_END], "from those of one process", ""),
    "6 noise not in the loss": (6, 0, [("rows[mine] + noise", "rows[mine]")], "from those of one process", ""),
    "6 the sum": (6, 0, [("parameter.grad /= world", "pass")], "from those of one process", ""),
    "6 noise around a half": (6, 0, [(NOISE, f"{NOISE} + 0.5")], "has a mean of 0.", ""),
    "6 the other sign": (6, 1, [(NOISE, f"{NOISE} * (-1) ** rank + 1e-6 * rank")], "with the other sign", ""),
    "5 a part of all": (5, 0, [(PARTS, "mine")], "tokens at once", ""),
    "5 everything on each": (5, 0, [("texts[rank::world]", "texts")], "together", "A token of a short part"),
    "3 all rows on each": (3, 0, [("batch[rank::world]", "batch")], "its part is", ""),
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
        "turns only once",
        "from short to long",
    ),
    "10 longest first": (
        10,
        0,
        [(BY_RANDOM, "reversed(range(len(batches)))")],
        "in the order of their lengths",
        "from short to long",
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
        "says that it idles for 75.0%; it does for 42.9%",
        "there and back",
    ),
    "9 more parts": (
        9,
        0,
        [("    clock = 0 ", "    micro_batches *= 2\n    clock = 0 ")],
        "a rank makes 8 forwards, not 4",
        "",
    ),
    "9 no time": (9, 0, [('"idle": idle}', '"idle": 0.0}')], "says that it idles for 0.0%", "begins when"),
    "12 forward first": (12, 0, [FIRST_F], "micro-batches at a time", "All forwards first"),
    "12 twice as far": (
        12,
        0,
        [("world - rank)", "2 * (world - rank))")],
        "micro-batches at a time",
        "All forwards first",
    ),
}


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


def test_two_orders_that_alternate_are_not_new_ones():
    job = edited(check_job_1.reference[0], ("1000 * epoch + rank", "1000 * (epoch % 2) + rank"))
    message = check_job_1(job, check_job_1.reference[1]).message
    assert "takes its rows in epoch 2 in the order of epoch 0" in message
