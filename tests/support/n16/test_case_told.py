"""Exercises 2 to 5 of notebook 16: right answers of a scout are accepted, wrong ones are told nothing untrue."""

import pytest

from support.kit.mistakes import edited
from support.n16 import case_four_numbers, case_friday, case_good_at_home, case_higher_curve
from tests.support.n16.test_casebook import EMPTY, JOINED, SEEN

CASES = {1: case_friday, 2: case_four_numbers, 3: case_higher_curve, 4: case_good_at_home}
REDUCED = "                dist.all_reduce(parameter.grad)\n                parameter.grad /= world\n"
SHARE_OF_ROWS = (
    (
        "            loss.backward()\n",
        "            loss.backward()\n            count = torch.tensor(float(len(batch)))\n"
        "            dist.all_reduce(count)\n",
    ),
    (
        REDUCED,
        "                parameter.grad *= len(batch) / count\n                dist.all_reduce(parameter.grad)\n",
    ),
)
ON_AND_ON = (
    EMPTY,
    ("    optimizer =", "    model = DDP(model)\n    join = model.join()\n    join.__enter__()\n    optimizer ="),
    ("in order.split(batch_size)", "in order.split(batch_size) if len(order) else []"),
    (REDUCED, "                pass\n"),
    ("{loss.item():.3f}", "{loss:.3f}"),
    ("        print(f", "        if len(order):\n            print(f"),
    ('    return {"seen"', '    join.__exit__(None, None, None)\n    return {"seen"'),
    ("model.state_dict()", "model.module.state_dict()"),
)
ROW_BY_ROW = (
    ("DataLoader(dataset, batch_size, sampler=sampler)", "[dataset[i] for i in sampler]"),
    ("argmax(dim=1)", "argmax()"),
    ("len(target)", "1"),
)
SHARED = (("    dataset = Noisy()", "    rows = rows.share_memory_()\n    dataset = Noisy()"),)
AS_NUMPY = (
    ("    dataset = Noisy()", "    table = rows.numpy()\n    dataset = Noisy()"),
    (
        "rows[index] + torch.randn(rows[index].shape",
        "torch.from_numpy(table[index]) + torch.randn(rows.shape[1:]",
    ),
)
LEFT_2 = (("    return (right / seen).item()", "    dist.destroy_process_group()\n    return (right / seen).item()"),)
LEFT_3 = (
    ("    return model", "    dist.destroy_process_group()\n    return model"),
    ("lr=learning_rate / world", "lr=float(torch.tensor(learning_rate) / world)"),
)

#: Case, whether the sick job is edited, and how.
RIGHT = {
    "1 weighed with a share of rows, a float32": (1, 1, (EMPTY, JOINED, SEEN, *SHARE_OF_ROWS)),
    "1 joined behind the last epoch": (1, 1, ON_AND_ON),
    "2 a number of numpy's": (2, 0, [("(right / seen).item()", "(right / seen).float().numpy()[()]")]),
    "2 row by row": (2, 0, ROW_BY_ROW),
    "2 leaves its group": (2, 0, LEFT_2),
    "3 leaves its group, and rounds its rate to a float32": (3, 0, LEFT_3),
    "4 rows in shared memory": (4, 0, SHARED),
    "4 rows as an array": (4, 0, AS_NUMPY),
}


@pytest.fixture(autouse=True, scope="module")
def few_trials():
    """Try a job with those trials that part these answers."""
    kept = {case: case.TRIALS for case in CASES.values()}
    for case, trials in kept.items():
        case.TRIALS = trials[:2] if isinstance(trials, tuple) else dict([*trials.items()][:1])
    case_friday.TRIALS += ((3, 2, 1, 2),)  # a rank has no rows
    yield
    for case, trials in kept.items():
        case.TRIALS = trials


def with_costs(answers):
    """Return the names of answers; case 1 starts its ranks anew for each trial, and of each of its mistakes."""
    return [pytest.param(each, marks=pytest.mark.costly) if each[0] == "1" else each for each in answers]


def verdict_of(number, of_the_sick, changes):
    case = CASES[number]
    check = getattr(case, f"check_job_{number}")
    job = getattr(case, f"sick_{number}")() if of_the_sick else getattr(case, f"job_{number}")
    return check(edited(job, *changes), check.reference[1])


@pytest.mark.parametrize("answer", with_costs(RIGHT))
def test_a_right_answer_is_accepted(answer):
    verdict = verdict_of(*RIGHT[answer])
    assert verdict, verdict.message


OF_THE_SUM = (
    ("targets[batch])", "targets[batch], reduction='sum')"),
    ("                dist.all_reduce(parameter.grad)\n",
     "                parameter.grad /= len(batch)\n                dist.all_reduce(parameter.grad)\n"),
)  # fmt: skip
LOSS_OF_ALL = (("total += loss.item()", "total += F.mse_loss(model(rows[batch]), targets[batch]).item()"),)
ONE_READS = (
    ("class Noisy(Dataset):", "class Noisy(IterableDataset):"),
    ("        def __len__(self):\n            return len(rows)\n\n",
     "        def __iter__(self):\n            if get_worker_info() is None or get_worker_info().id == 0:\n"
     "                sampler.set_epoch(int(self.epoch))\n                yield from map(self.row, sampler)\n\n"),
    ("def __getitem__(self, index)", "def row(self, index)"),
    ("DistributedSampler(dataset,", "DistributedSampler(range(len(rows)),"),
    ("sampler=sampler, ", ""),
)  # fmt: skip
MADE_BEFORE = (
    (
        "        for numbers, pictures in loader:",
        "        made = [dataset[i] for i in sampler]\n"
        "        for numbers, pictures in DataLoader(made, 4, num_workers=workers):",
    ),
)
NEVER_TOLD = (
    ("persistent_workers=workers > 0", "persistent_workers=False"),
    ("        dataset.set_epoch(epoch)\n", ""),
)

#: Case, whether the sick job is edited, how, what is said, and what would be untrue.
WRONG = {
    "1 NaN on all ranks": (1, 1, (EMPTY, JOINED, SEEN, *OF_THE_SUM), "it is nan from", "different models"),
    "1 a rate that is W times as long": (1, 0, [("lr=0.05", "lr=0.05 * world")], "Each step is W times", "The sum"),
    "3 another loss is printed": (3, 0, LOSS_OF_ALL, "rows through the model", "trains on"),
    "3 a loss that is divided": (3, 0, [("loss.b", "(loss / world).b")], "two divisions by W", "the sum"),
    "3 a loss that is multiplied": (3, 0, [("loss.b", "(loss * world).b")], "W times too long", "is now W times"),
    "4 from epoch 0": (4, 0, [("range(first_epoch, epochs)", "range(epochs)")], "too: 0, 1, 2", "do not come"),
    "4 one worker reads": (4, 0, ONE_READS, "only 1 of 2 workers read", "has 1 worker"),
    "4 made by the trainer": (4, 1, MADE_BEFORE, "trainer", "ithout workers"),
    "4 no copy is told": (4, 1, NEVER_TOLD, "not its own but that of epoch 0", "still the first"),
    "4 whole batches alone": (4, 0, [("sampler=s", "drop_last=True, sampler=s")], "has other rows, or", "in another"),
    "4 noise of another row": (4, 0, [("int(self.epoch) * len(rows)", "int(self.epoch)")], "its own.", "no epoch"),
    "4 rows as a list": (
        4, 0, [("    dataset = Noisy()", "    rows = torch.tensor(rows.tolist())\n    dataset = Noisy()")],
        "nobody on rank 0 has read `rows` by its index", "0 workers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("answer", with_costs(WRONG))
def test_a_wrong_answer_is_told_nothing_untrue(answer):
    *asked, told, untrue = WRONG[answer]
    verdict = verdict_of(*asked)
    assert verdict.status == "wrong", "accepted"
    assert told in verdict.message
    assert untrue not in verdict.message
