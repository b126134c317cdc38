"""Clauses of the contracts of notebook 16: what breaks one alone is refused, and told nothing untrue."""

import pytest

from support.kit.mistakes import edited
from support.n16 import (
    case_four_numbers,
    case_friday,
    case_less_to_keep,
    case_longer_rows,
    case_more_rows,
    case_nobody_is_slow,
    case_smaller_card,
    case_three_cuts,
    case_three_sevenths,
)
from support.n16.rank import Stand
from tests.support.n16.test_case_readers import body_between

LOSS = "F.mse_loss(model(rows[batch]), targets[batch])"
OF_A_FULL_STEP = 'F.mse_loss(model(rows[batch]), targets[batch], reduction="sum") / batch_size'
DRAWN = "torch.randperm(len(batches), generator=random).tolist()"
IN_TURN = (
    (
        "    seen = []\n",
        "    seen = []\n    both = [torch.randperm(len(batches), generator=random) for _ in range(2)]\n",
    ),
    (DRAWN, "both[epoch % 2].tolist()"),
)
PART = (
    '            loss = F.cross_entropy(weight[before], after, reduction="sum") / count\n'
    "            loss.backward()\n"
    "            total += loss.item()\n"
)
#: All parts wait for one backward.
ONE_BACKWARD = (
    (PART, '            total = total + F.cross_entropy(weight[before], after, reduction="sum") / count\n'),
    ("        dist.all_reduce(weight.grad)\n", "        total.backward()\n        dist.all_reduce(weight.grad)\n"),
)
SHARE = "order[rank * len(order) // world : (rank + 1) * len(order) // world]"
A_ROW = body_between(case_longer_rows.job_11, "        tokens = torch.cat(row)", "    print(")
PADDED = """\
        tokens = nn.utils.rnn.pad_sequence(row, batch_first=True, padding_value=-100)
        longest = tokens.shape[1]
        x = embedding[tokens.clamp(min=0)] + places[:longest]
        allowed = torch.ones(longest, longest).tril().bool()
        scores = x @ x.mT / x.shape[-1] ** 0.5
        x = x + scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1) @ x
        predicted = x[:, :-1] @ embedding.T
        after = tokens[:, 1:]
        total += F.cross_entropy(predicted.flatten(0, 1), after.flatten(), reduction="sum").item()
        count += int((after >= 0).sum())
"""
NORMED = "        nn.utils.clip_grads_with_norm_(stage.parameters(), max_norm, square.sqrt())\n"

PASSED = "            dist.send(x.grad, rank - 1)\n"

#: Case, edits of the right job, and what is said.
ANSWERS = {
    "1 one step an epoch": (case_friday, [("order.split(batch_size)", "[order]")], "has 17 rows, and batch_size is 4"),
    "1 a short step as if it were full": (case_friday, [(LOSS, OF_A_FULL_STEP)], "from that of one process"),
    "1 tensors for lists": (case_friday, [("batch.tolist()", "batch")], "a batch in seen is a Tensor"),
    "1 the model itself": (case_friday, [("model.state_dict()", "model")], "leave its last line"),
    "2 a share of nothing": (case_four_numbers, [("in loader:", "in []:")], "rank 0 says nan"),
    "5 one backward behind all parts": (
        case_smaller_card,
        ONE_BACKWARD,
        "keeps the activations of 28 tokens at once; 2 texts at a time have 25 at most",
    ),
    "8 a longest gradient of 0 is left out": (
        case_three_cuts,
        [(NORMED, f"        if max_norm:\n    {NORMED}")],
        "with 4 layers and max_norm = 0.0",
    ),
    "8 what a stage passes on is cut, too": (
        case_three_cuts,
        [(PASSED, f"            nn.utils.clip_grad_norm_([x], max_norm)\n{PASSED}")],
        "with 4 layers and max_norm = 0.05",
    ),
    "9 a share of nothing": (
        case_three_sevenths,
        [('"idle": idle', '"idle": float("nan")')],
        "rank 0 says that it idles for nan",
    ),
    "9 rounded": (
        case_three_sevenths,
        [('"idle": idle', '"idle": round(idle, 3)')],
        "idles for 42.900000%; it does for 42.857143%",
    ),
    "9 parts without rows left out": (
        case_three_sevenths,
        [
            (
                "        x = part.clone() if",
                "        if len(part) == 0:\n            continue\n        x = part.clone() if",
            )
        ],
        "on 2 ranks with 3 rows in 5 micro-batches a rank makes 3 forwards, not 5",
    ),
    "10 shares of neighbours": (
        case_nobody_is_slow,
        [("order[rank::world]", SHARE)],
        "a rank computes for 2472 tokens on average",
    ),
    "10 a last batch without a text": (
        case_nobody_is_slow,
        [
            ("mine[start : start + batch_size]", "order[start * world :][rank * batch_size :][:batch_size]"),
            ("max(lengths[text] for text in batch)", "max((lengths[text] for text in batch), default=0)"),
        ],
        "on 2 ranks with 76 texts, batches of 4 and seed 1, epoch 0: a batch is empty",
    ),
    "10 only rank 0 returns": (
        case_nobody_is_slow,
        [("    return seen", "    if rank == 0:\n        return seen")],
        "rank 1 returned None",
    ),
    "10 tells how long, not how much": (
        case_nobody_is_slow,
        [("torch.tensor(tokens)", "torch.tensor(tokens // len(batch))")],
        "tokens, and tells the others",
    ),
    "10 a seed of 0 is that of 1": (
        case_nobody_is_slow,
        [("manual_seed(seed)", "manual_seed(seed or 1)")],
        "in the same order with seed 1 as with seed 0",
    ),
    "10 two orders that alternate": (case_nobody_is_slow, IN_TURN, "in the same order in epochs 0 and 2"),
    "11 padded": (case_longer_rows, [(A_ROW, PADDED)], "no more than 6 tokens are read at once; of 18 in 2 rows"),
    "11 rounded": (
        case_longer_rows,
        [("return total / count", "return round(total / count, 4)")],
        "0000; each text read alone",
    ),
    "11 a mean of nothing": (
        case_longer_rows,
        [(', reduction="sum").item()', ").item() * int(inside.sum())")],
        "with texts of 4, 1, 4 tokens and rows of 4 the loss is nan",
    ),
    "12 nobody waits for the last gradient": (
        case_less_to_keep,
        [
            ("    sent = []\n", "    sent = []\n    gradients = []\n"),
            ("dist.send(x.grad, rank - 1)", "gradients.append(dist.isend(x.grad, rank - 1))"),
        ],
        "is gone before anybody has waited for it: keep it and wait for it, or the message may never leave.",
    ),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.costly
def test_what_breaks_one_clause_is_refused(answer):
    case, changes, told = ANSWERS[answer]
    number = answer.split()[0]
    check = getattr(case, f"check_job_{number}")
    verdict = check(edited(getattr(case, f"job_{number}"), *changes), check.reference[1])
    assert verdict.status == "wrong", "accepted"
    assert told in verdict.message


#: Case, edits of the sick job, and a cause that this answer does not have.
OTHER_CAUSES = {
    "5 a learning rate that is divided": (
        case_smaller_card,
        [
            ("lr=learning_rate", "lr=learning_rate / world"),
            ("after) / len(parts)", 'after, reduction="sum") / sum(len(text) - 1 for text in texts)'),
            ("        weight.grad /= world\n", ""),
        ],
        "the sum is divided",
    ),
    "6 the seed of the job and of the rank, in each epoch": (
        case_more_rows,
        [("        order = ", "        torch.manual_seed(1000 * seed + rank)\n        order = ")],
        "with the rank alone",
    ),
}


@pytest.mark.costly
@pytest.mark.parametrize("answer", OTHER_CAUSES)
def test_no_answer_is_told_of_a_cause_that_it_does_not_have(answer):
    case, changes, untrue = OTHER_CAUSES[answer]
    number = answer.split()[0]
    check = getattr(case, f"check_job_{number}")
    verdict = check(edited(getattr(case, f"sick_{number}")(), *changes), check.reference[1])
    assert verdict.status == "wrong", "accepted"
    assert untrue not in verdict.message


def test_a_rank_with_fewer_forwards_than_the_others_is_told_of_these():
    tasks = [[("F", part) for part in range(4)], [("F", 0)]]
    stands = [Stand("done", ({"idle": 0.2}, each)) for each in tasks]
    assert "a rank makes 1 forward, not 4" in case_three_sevenths._fault_of_ticks("here", stands, 4)


def test_only_an_answer_that_adds_is_told_that_it_adds():
    seeded = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
    times = (seeded, f"{seeded}    torch.manual_seed((seed + 1) * (rank + 1))\n")
    verdict = case_more_rows.check_job_6(edited(case_more_rows.sick_6(), times), case_more_rows.FORECAST_6)
    assert verdict.status == "wrong", "accepted"
    assert "added" not in verdict.message


OF_12 = (case_less_to_keep, 12, "        backward(i)\n", "ticks, a tick for each task")
OF_9 = (case_three_sevenths, 9, "        kept.append((x, y))\n", "of the time; it used to be")


@pytest.mark.parametrize("meeting, case, number, line, told", [
    ("dist.barrier()", *OF_12), ("dist.monitored_barrier()", *OF_12), ("dist.all_reduce(torch.ones(1))", *OF_9),
])  # fmt: skip
def test_who_meets_all_ranks_at_each_micro_batch_waits_for_the_last(meeting, case, number, line, told):
    job = edited(getattr(case, f"job_{number}"), (line, f"{line}        {meeting}\n"))
    check = getattr(case, f"check_job_{number}")
    assert told in check(job, check.reference[1]).message


def test_a_meeting_ends_when_the_last_has_come():
    forwards = [("F", 0), ("S", 1), ("F", 1), ("S", 1), ("F", 2), ("S", 1)]
    last = [("F", 0), ("W", 0), ("F", 1), ("B", 0), ("S", 0)]
    assert case_less_to_keep.ticks_of([[*forwards, ("W", 0), ("B", 0)], last]) == 6
    assert case_less_to_keep.ticks_of([[("W", 0), *forwards, ("B", 0)], last]) == float("inf")
