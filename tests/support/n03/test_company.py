"""Networks by the dozen are torch's own, deals are the sampler's, and a finding can turn out the other way."""

import ast
import json
from statistics import fmean

import pytest
import torch
from torch import nn

from support import recordings
from support.n03 import company, cost, guesses, runs
from support.n03.solved import new_company, new_steps
from tools.hygiene import joined
from tools.project import ROOT

NOTEBOOK = ROOT / "notebooks" / "03_distributed_sampler.ipynb"


def data(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 64, generator=generator), torch.randint(10, (rows,), generator=generator)


def as_modules(nets, number):
    """Return one of the networks as torch's own layers."""
    first, scale, shift, second, bias = (weight[number].detach() for weight in nets.weights)
    modules = nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    with torch.no_grad():
        modules[0].weight.copy_(first.T)
        modules[1].weight.copy_(scale[0])
        modules[1].bias.copy_(shift[0])
        modules[3].weight.copy_(second.T)
        modules[3].bias.copy_(bias[0])
    return modules


def test_a_step_is_that_of_torchs_layers_on_each_group_and_evaluation_takes_group_zeros_averages():
    nets = company.Networks([3, 4], batch_norm=True)
    images, labels = data(24)
    rows = torch.stack([torch.arange(24).view(4, 6), torch.arange(24).flip(0).view(4, 6)])
    modules = [as_modules(nets, number) for number in range(2)]
    company.descend(nets, images[rows], labels[rows], rate=0.2)
    for number, model in enumerate(modules):
        averages = None
        losses = []
        for group in rows[number]:
            losses.append(nn.functional.cross_entropy(model(images[group]), labels[group]))
            if averages is None:
                averages = [model[1].running_mean.clone(), model[1].running_var.clone()]
        torch.stack(losses).mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.2).step()
        model[1].running_mean, model[1].running_var = averages
        after = as_modules(nets, number)
        for mine, theirs in zip(after.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
        model.eval()
        evaluated = nn.functional.cross_entropy(model(images), labels).item()
        assert nets.test_losses(images, labels)[number] == pytest.approx(evaluated, rel=1e-4)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_training_depends_on_seed_and_order_learns_and_leaves_torchs_threads_alone(batch_norm):
    train_set = data(32)
    threads = torch.get_num_threads()
    orders = torch.stack([torch.randperm(32, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)])
    orders = orders.view(3, 1, 2, 4, 4).expand(-1, 40, -1, -1, -1)
    found = company.train_ways({"a": orders[:2], "b": orders[1:]}, train_set, train_set, batch_norm=batch_norm)
    assert torch.get_num_threads() == threads
    first, second = found["a"]
    again, other = found["b"]
    assert again != pytest.approx(second, rel=1e-4)  # the same order, and the first network's initial weights
    assert again == pytest.approx(first, rel=1e-4)
    assert other != pytest.approx(second, rel=1e-4)
    assert max(first, second, again, other) < 1.5


def test_a_deal_is_the_samplers_and_larger_groups_hold_the_same_images_in_the_same_steps():
    orders = company.dealt(96, seed=5, epochs=3)
    assert orders.shape == (3, 3, 8, 4)
    for epoch, rank in ((0, 0), (2, 7)):
        sampler = torch.utils.data.DistributedSampler(range(96), 8, rank, seed=5)
        sampler.set_epoch(epoch)
        assert orders[epoch, :, rank].flatten().tolist() == list(sampler)
    assert torch.equal(company.dealt(96, 5, 3, told=False), orders[:1].expand(3, -1, -1, -1))
    wider = company.grouped(orders, 16)
    assert wider.shape == (3, 3, 2, 16)
    assert torch.equal(wider.flatten(2), orders.flatten(2))
    with pytest.raises(ValueError, match="each rank has 13 of 97 samples, which 4 does not divide"):
        company.dealt(97, 0, 1)


def test_controls_begin_with_the_frozen_epoch_and_deal_every_later_one_anew():
    frozen = company.dealt(96, 0, 4, told=False)
    for control in (new_steps, new_company):
        made = company.controlled(frozen, control, seed=1)
        assert torch.equal(made[0], frozen[0])
        assert len({tuple(epoch.flatten().tolist()) for epoch in made}) == 4
        assert torch.equal(made, company.controlled(frozen, control, seed=1))


TOLD = [0.3, 0.31, 0.32, 0.29]


@pytest.mark.parametrize(
    "steps, mates, truth", [(0.1, 0.0, "company"), (0.0, 0.1, "steps"), (0.1, 0.1, "both"), (-0.1, 0.0, "none")]
)
def test_what_harms_is_read_off_the_measurement_and_may_be_any_of_four(steps, mates, truth):
    noise = [0.001, -0.002, 0.002, -0.001]

    def raised(by):
        return [loss + by + off for loss, off in zip(TOLD, noise, strict=True)]

    losses = {"told": TOLD, "new steps": raised(steps), "new company": raised(mates), "forgotten": raised(steps)}
    assert guesses.guess_harmful(truth.upper(), losses).message.endswith(
        f"that is it, what it is that harms = {truth}."
    )
    plain = {0.1: "higher", 0.0: "same", -0.1: "lower"}[steps]
    assert "that is it" in guesses.guess_plain(plain, losses).message


def prose():
    return "\n".join(joined(cell["source"]) for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"])


def relative(ways, way="forgotten"):
    return fmean(ways[way]) / fmean(ways["told"]) - 1


def per_cent(share):
    return f"{share:.0%}".replace("%", " %")


def test_a_guess_below_zero_keeps_its_sign():
    assert "You said [-1];" in guesses.guess_last_of_eight([-1]).message


def test_the_recorded_study_has_twenty_seeds_of_everything_at_every_rate():
    record = recordings.load("company")
    assert [float(rate) for rate in record["results"]] == list(company.RATES)
    for what in ("results", "wrong", "exact"):
        for sizes in record[what].values():
            assert list(sizes) == [name for name in cost.NAMES if what != "exact" or name != "none"]
            assert {len(each) for ways in sizes.values() for each in ways.values()} == {record["seeds"]} == {20}
            assert all(
                {"new steps", "new company"} < set(ways) for name, ways in sizes.items() if name in ("none", "4")
            )


def test_company_costs_at_the_notebooks_rate_as_it_says_and_less_the_larger_it_is():
    results = recordings.load("company")["results"]["0.1"]
    rise = {size: relative(ways) for size, ways in results.items()}
    assert rise["4"] > rise["8"] > rise["16"] > rise["32"] > 0.03 > abs(rise["none"])
    for size in ("4", "8", "16", "32"):
        assert f"{per_cent(rise[size])} in groups of {size}" in prose().replace("of the test loss in", "in")
    assert guesses.clearly(results["none"], "forgotten") == "same"
    assert guesses.guess_harmful("company", results["4"]).message.count("that is it") == 1


@pytest.mark.costly
def test_the_cost_grows_with_the_length_as_the_prose_says_and_after_ten_epochs_little_of_it_is_there(tmp_path):
    seeds = 20
    ten = {
        way: torch.stack([company.dealt(1437, 30 * seed, 10, way == "told") for seed in range(seeds)])
        for way in ("told", "forgotten")
    }
    losses = company.train_ways(
        ten, *(runs.digits(split, tmp_path / "digits") for split in ("train", "test")), batch_norm=True
    )
    assert 0.03 < relative(losses) < 0.15  # by seed and machine it differs
    thirty = per_cent(relative(recordings.load("company")["results"]["0.1"]["4"]))
    assert f"8 % after ten epochs, {thirty} after thirty" in prose()


def test_what_turns_it_round_is_the_rate_without_batch_normalisation_and_then_the_steps_cost():
    record = recordings.load("company")
    plain = {rate: sizes["none"] for rate, sizes in record["results"].items()}
    found = {rate: guesses.clearly(ways, "forgotten") for rate, ways in plain.items()}
    assert found == dict.fromkeys(("0.01", "0.05", "0.1"), "same") | dict.fromkeys(("0.3", "0.6"), "higher")
    for rate in ("0.3", "0.6"):
        assert per_cent(relative(plain[rate])) in prose()
        assert guesses._harmful(plain[rate]) == "steps"
        # of a mean over a step's images it does not matter who stands where
        assert plain[rate]["new company"] == pytest.approx(plain[rate]["forgotten"], rel=0.05)


def test_with_batch_normalisation_company_costs_at_every_rate_and_by_exact_statistics_too():
    record = recordings.load("company")
    *others, last = [per_cent(relative(sizes["4"], "new steps")) for sizes in record["results"].values()]
    assert f"{', '.join(others)} and {last}" in prose()
    for what in ("results", "exact"):
        for sizes in record[what].values():
            assert guesses.clearly(sizes["4"], "forgotten") == guesses.clearly(sizes["4"], "new steps") == "higher"
    exact = record["exact"]["0.1"]["4"]
    moving = record["results"]["0.1"]["4"]
    assert f"{per_cent(relative(exact))} with them and {per_cent(relative(moving))} without" in prose()
    wrong = record["wrong"]["0.1"]["4"]
    assert f"{fmean(wrong['forgotten']):.1%} in place of {fmean(wrong['told']):.1%}".replace("%", " %") in prose()


def test_company_costs_more_than_a_third_where_each_way_has_the_best_of_the_five_rates():
    results = recordings.load("company")["results"]
    rise = {}
    for size in ("none", "4", "32"):
        told, forgotten = [
            min((fmean(sizes[size][way]), rate) for rate, sizes in results.items()) for way in ("told", "forgotten")
        ]
        rise[size] = forgotten[0] / told[0] - 1
        if size == "4":
            with_it, without = [f"at {rate}" for _, rate in (told, forgotten)]
            best = f"the loss is {told[0]:.3f} with `set_epoch`, {with_it}, and {forgotten[0]:.3f} without, {without}"
            assert best in prose()
    assert f"which is {per_cent(rise['4'])} more. In groups of 32 it is {per_cent(rise['32'])}" in prose()
    assert f"{per_cent(rise['4'])} and {per_cent(rise['32'])} at each way's best of five rates" in prose()
    assert abs(rise["none"]) < 0.01


def test_exact_statistics_are_those_of_all_images_and_wrong_answers_are_counted():
    nets = company.Networks([3, 4], batch_norm=True)
    images, labels = data(24)
    nets.settle(images)
    for number in range(2):
        modules = as_modules(nets, number)
        modules[1].momentum = None  # the mean of all batches seen, of which there is one
        modules(images)
        with torch.no_grad():
            logits = modules.eval()(images)
        loss = nn.functional.cross_entropy(logits, labels).item()
        assert nets.test_losses(images, labels)[number] == pytest.approx(loss, rel=1e-4)
        assert nets.wrong_shares(images, labels)[number] == pytest.approx(
            (logits.argmax(1) != labels).double().mean().item()
        )


def without_types(text):
    """Return a function's statements as Python prints them, without annotations and docstrings."""
    function = ast.parse(text).body[0]
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            if ast.get_docstring(node):
                node.body = node.body[1:]
    return ast.unparse(function)


def printed_at(rate, length, batch_norm, exact, capsys):
    """Return what the cell prints whose settings the reader is asked to turn, with made-up losses of its own."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    texts = [joined(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (shows,) = (
        part for text in texts if "def show(" in text for part in ast.parse(text).body if "name" in part._fields
    )
    (turned,) = (text for text in texts if "your turn: rates" in text)
    for before, after in (
        ("RATE, LENGTH = 0.6, 30", f"RATE, LENGTH = {rate}, {length}"),
        ("BATCH_NORM, EXACT = False, False", f"BATCH_NORM, EXACT = {batch_norm}, {exact}"),
    ):
        assert before in turned
        turned = turned.replace(before, after)
    orders = torch.zeros(1, 30, 1, 1, 1)
    names = dict.fromkeys(("told", "forgotten", "train_set", "test_set"), orders)
    names |= {"record": recordings.load("company"), "train": company.train, "ways": {}}
    names["train_ways"] = lambda ways, *data, **how: {way: [0.5] for way in ways}
    exec(ast.unparse(shows) + "\n" + turned, names)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "rate, length, batch_norm, exact, beside",
    [
        (0.6, 30, False, False, "0.500   recorded: 0.412"),
        (0.1, 30, True, True, "0.500   recorded: 0.300"),
        (0.6, 30, False, True, "0.500   recorded: 0.412"),  # without batch normalisation there is no statistic
        (0.2, 30, False, False, ""),
        (0.1, 10, True, False, ""),
    ],
)
def test_beside_a_setting_of_the_readers_stands_what_was_recorded_at_it_or_nothing(
    rate, length, batch_norm, exact, beside, capsys
):
    printed = printed_at(rate, length, batch_norm, exact, capsys)
    assert "told         0.500" in printed
    assert beside in printed
    assert ("recorded" in printed) == bool(beside)
    # answers were counted with running averages; what is said of a network without them must not name them
    assert ("recorded wrong answers, told" in printed) == bool(beside and not (batch_norm and exact))


@pytest.mark.parametrize("name", ["descend", "train", "dealt"])
def test_what_was_recorded_is_what_the_notebooks_cell_computes(name):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    texts = [joined(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    shown = [
        ast.unparse(part)
        for text in texts
        if "!git" not in text
        for part in ast.parse(text).body
        if isinstance(part, ast.FunctionDef) and part.name == name
    ]
    room = ast.parse((ROOT / "notebooks/support/n03/company.py").read_text(encoding="utf-8")).body
    (own,) = (ast.unparse(part) for part in room if isinstance(part, ast.FunctionDef) and part.name == name)
    assert [without_types(text) for text in shown] == [without_types(own)]


def test_ways_of_unequal_many_seeds_are_refused_with_their_numbers():
    orders = torch.zeros(5, 1, 1, 2, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"\{'told': 5, 'forgotten': 3\}; run the cells again that deal them"):
        company.train_ways({"told": orders, "forgotten": orders[:3]}, data(4), data(4), batch_norm=True)
