"""What is said of a flattened model and of a cut, exercises 1 and 2: other right answers, and wrong ones."""

from collections import OrderedDict

import numpy
import pytest
import torch
from torch import nn

from lib.pipeline import flatten_sequential
from lib.pipeline.balance import partition
from support.n12 import checks as n12

# ---- exercise 1


def test_the_flatten_of_lib_passes_and_a_copy_and_a_model_that_was_changed_are_told():
    assert n12.check_flatten(flatten_sequential)

    def copies(module):
        flat = n12.flatten_sequential(module)
        return nn.Sequential(*(type(x)(4, 4) if isinstance(x, nn.Linear) else x for x in flat))

    def appends(module):
        flat = n12.flatten_sequential(module)
        module.append(nn.Identity())
        return flat

    def opens_in_place(module):
        layers = [*n12.flatten_sequential(module)]
        del module[:]
        module.extend(layers)
        return module

    changed = n12.check_flatten(opens_in_place).message
    assert "the given module was changed" in changed
    assert "One level" not in changed
    assert "these are copies" in n12.check_flatten(copies).message
    assert "the given module was changed" in n12.check_flatten(appends).message
    for opens in (
        lambda x: "Sequential" in type(x).__name__,
        lambda x: type(x).__name__ == "Sequential",
        lambda x: type(x) in (nn.Sequential, nn.ModuleList),
    ):

        def too_much(module, opens=opens):
            layers = []
            for layer in module:
                layers += too_much(layer) if opens(layer) else [layer]
            return nn.Sequential(*layers)

        assert n12.check_flatten(too_much).status == "wrong"
    assert "an nn.Sequential is expected, not list" in n12.check_flatten(list).message
    for train in (True, False):
        set_all = n12.check_flatten(lambda module, train=train: n12.flatten_sequential(module).train(train))
        assert "a layer's `training` was changed" in set_all.message


def test_who_goes_into_every_layer_and_names_each_place_is_not_told_of_modules():
    def every_place(module):
        named = module.named_modules(remove_duplicate=False)
        return nn.Sequential(*(x for _, x in named if not isinstance(x, nn.Sequential)))

    message = n12.check_flatten(every_place).message
    assert "for a residual layer" in message
    assert "names it once" not in message


@pytest.mark.parametrize(
    "opens", [lambda x: isinstance(x, nn.Sequential), lambda x: not isinstance(x, nn.Linear) and len([*x.children()])]
)
def test_who_tells_layers_apart_on_the_first_level_only_is_told(opens):
    def inside(layer):
        return [x for below in layer.children() for x in inside(below)] if opens(layer) else [layer]

    def first_level(module):
        layers = []
        for layer in module:
            if type(layer) is nn.Sequential:
                layers += [x for below in layer for x in inside(below)]
            else:
                layers.append(layer)
        return nn.Sequential(*layers)

    message = n12.check_flatten(first_level).message
    assert "inside a Sequential, ['Residual', 'DoubledSequential', 'Linear'] is expected" in message
    assert "open only what is an nn.Sequential itself" not in message


def test_a_layer_that_comes_twice_in_a_row_and_an_identity_are_layers():
    def once_in_a_row(module):
        flat = n12.flatten_sequential(module)
        return nn.Sequential(*(x for k, x in enumerate(flat) if k == 0 or flat[k - 1] is not x))

    def does_something(module):
        return nn.Sequential(*(x for x in n12.flatten_sequential(module) if not isinstance(x, nn.Identity)))

    assert "twice in a row" in n12.check_flatten(once_in_a_row).message
    assert "an Identity" in n12.check_flatten(does_something).message


class OpensEachOnce:
    def __init__(self):
        self.seen = []

    def __call__(self, module):
        layers = []
        for layer in module:
            if type(layer) is not nn.Sequential:
                layers.append(layer)
            elif not any(layer is each for each in self.seen):
                self.seen.append(layer)
                layers += self(layer)
        return nn.Sequential(*layers)


def test_a_block_that_is_opened_once_and_a_flat_model_that_comes_back_are_told():
    once = n12.check_flatten(lambda module: OpensEachOnce()(module))
    assert (
        "for one nested Sequential object in two places, ['Linear', 'ReLU', 'Linear', 'Linear', 'ReLU']" in once.message
    )

    distinct = n12.check_flatten(lambda module: n12.flatten_sequential(nn.Sequential(*dict.fromkeys(module)))).message
    assert distinct.endswith("An object may stand in several places, and `children()` names it once.")

    def the_same(module):
        nested = any(type(layer) is nn.Sequential for layer in module)
        return n12.flatten_sequential(module) if nested else module

    assert "the given module itself came back" in n12.check_flatten(the_same).message


def opened(module):
    """Open one level."""
    layers = []
    for layer in module:
        layers += [*layer] if type(layer) is nn.Sequential else [layer]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("levels", [2, 3, 10])
def test_who_opens_so_many_levels_and_no_more_is_told(levels):
    def opens(module):
        for _ in range(levels):
            module = opened(module)
        return module

    assert "levels deep" in n12.check_flatten(opens).message


def test_names_that_run_together_lose_a_layer():
    def by_name(module):
        layers = OrderedDict()

        def walk(inside, name):
            for place, layer in enumerate(inside):
                if type(layer) is nn.Sequential:
                    walk(layer, f"{name}{place}")
                else:
                    layers[f"{name}{place}"] = layer

        walk(module, "")
        return nn.Sequential(layers)

    assert "for eleven layers" in n12.check_flatten(by_name).message


def test_a_layer_is_found_by_its_place_not_by_its_name_and_one_alone_is_in_a_sequential_too():
    def by_number(module):
        layers = []
        for k in range(len(module)):
            layer = getattr(module, str(k))
            layers += by_number(layer) if type(layer) is nn.Sequential else [layer]
        return nn.Sequential(*layers)

    def unwrapped(module):
        flat = n12.flatten_sequential(module)
        return flat if len(flat) > 1 else flat[0]

    assert "for one layer, which has a name: your code raised AttributeError" in n12.check_flatten(by_number).message
    assert "for one layer, which has a name, an nn.Sequential is" in n12.check_flatten(unwrapped).message


# ---- exercise 2


def by_limit(costs, n):
    """Ask of each sum of neighbours, in rising order, whether partitions no dearer than it are few enough."""
    sums = sorted({sum(costs[a:b]) for a in range(len(costs)) for b in range(a + 1, len(costs) + 1)})
    for limit in sums:
        sizes = []
        total = limit + 1
        for at, cost in enumerate(costs):
            left = len(costs) - at
            if not sizes or (total + cost > limit) or left == n - len(sizes):
                sizes.append(0)
                total = 0
            sizes[-1] += 1
            total += cost
        if len(sizes) == n and max(n12_sums(costs, sizes)) <= limit:
            return sizes
    raise AssertionError


def n12_sums(costs, sizes):
    rest = list(costs)
    for size in sizes:
        yield sum(rest[:size])
        del rest[:size]


def filled_up_to(costs, n, limit):
    """Begin a partition where the limit, or the number of layers left, asks for it; None if n are too few."""
    sizes = [0]
    total = 0
    for at, cost in enumerate(costs):
        if sizes[-1] and (total + cost > limit or len(costs) - at == n - len(sizes)):
            sizes.append(0)
            total = 0
        sizes[-1] += 1
        total += cost
    return sizes if len(sizes) == n and max(n12_sums(costs, sizes)) <= limit else None


def by_halves_of_whole_numbers(costs, n):
    low = int(max(costs))
    high = int(sum(costs)) + 1
    while low < high:
        middle = (low + high) // 2
        if filled_up_to(costs, n, middle):
            high = middle
        else:
            low = middle + 1
    return filled_up_to(costs, n, high)


def by_halves(costs, n):
    low = 0.0
    high = float(sum(costs))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if filled_up_to(costs, n, middle) else (middle, high)
    return filled_up_to(costs, n, high)


def by_coarse_halves(costs, n, until, rounds=1000):
    low = max(costs)
    high = sum(costs)
    while high - low > until and rounds:
        rounds -= 1
        middle = (low + high) / 2
        low, high = (low, middle) if filled_up_to(costs, n, middle) else (middle, high)
    return filled_up_to(costs, n, high)


def by_share(costs, n, share=1e-9):
    low = max(costs)
    high = sum(costs)
    while high - low > share * high:
        middle = (low + high) / 2
        low, high = (low, middle) if filled_up_to(costs, n, middle) else (middle, high)
    return filled_up_to(costs, n, high)


@pytest.mark.parametrize("until, rounds", [(1e-2, 1000), (1e-4, 1000), (1e-6, 1000), (1e-9, 1000), (0, 10), (0, 20)])
def test_a_search_that_stops_too_early_is_told(until, rounds):
    verdict = n12.check_cut(lambda costs, n: by_coarse_halves(costs, n, until, rounds))
    assert verdict.status == "wrong"
    assert "is possible" in verdict.message


def test_a_search_for_the_limit_and_libs_own_cut_pass_too():
    assert n12.check_cut(by_limit)
    assert n12.check_cut(by_halves)
    assert n12.check_cut(partition)
    assert n12.check_cut(lambda costs, n: tuple(numpy.array(partition(costs, n))))


def test_lengths_from_the_back_are_not_said_to_move_layers():
    message = n12.check_cut(lambda costs, n: partition(costs, n)[::-1]).message
    assert "the slowest partition of" in message
    assert "neighbours" not in message
    sorts = n12.check_cut(lambda costs, n: partition(sorted(costs), n)).message
    assert "Layers of a partition are neighbours" in sorts
    falling = n12.check_cut(lambda costs, n: partition(sorted(costs, reverse=True), n)).message
    assert "the slowest partition of" in falling
    assert "mean" not in falling


def of_the_last_one_only(costs, n):
    """Let the last partition alone cost as little as possible."""
    return [1] * (n - 2) + [len(costs) - n + 1, 1] if n > 1 else [len(costs)]


def above_the_mean(costs, n):
    """Begin a partition when the one before costs more than the mean."""
    sizes = [0]
    for at in range(len(costs)):
        full = sum(costs[at - sizes[-1] : at]) > sum(costs) / n and len(sizes) < n
        if sizes[-1] and (full or len(costs) - at == n - len(sizes)):
            sizes.append(0)
        sizes[-1] += 1
    return sizes


def up_to_multiples_of_the_mean(costs, n):
    """Fill the first j partitions up to j times the mean."""
    ends = [0]
    for j in range(1, n):
        end = int(numpy.searchsorted(numpy.cumsum(costs), j * sum(costs) / n, side="right"))
        ends.append(min(max(end, ends[-1] + 1), len(costs) - n + j))
    return numpy.diff([*ends, len(costs)]).tolist()


def by_the_sum(costs, n):
    """Forget the max: every cut costs the same, and the first one is taken."""
    return [1] * (n - 1) + [len(costs) - n + 1]


@pytest.mark.parametrize("answer", [of_the_last_one_only, above_the_mean, up_to_multiples_of_the_mean, by_the_sum])
def test_a_cut_that_fails_first_as_a_famous_one_does_is_not_taken_for_it(answer):
    assert n12.check_cut(answer).message.endswith("is possible.")


def test_equal_numbers_are_known_whoever_gets_the_rest():
    message = n12.check_cut(lambda costs, n: (*[len(costs) // n] * (n - 1), len(costs) - len(costs) // n * (n - 1)))
    assert "Equal numbers of layers" in message.message


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda costs, n: partition(costs, n)[:-1], "partitions are expected, and"),
        (lambda costs, n: [*partition(costs, n), 1][1:], "there are 6 layers, and [3, 1] has 4"),
        (lambda costs, n: [len(costs)] + [0] * (n - 1), "every partition has a layer at least"),
        (lambda costs, n: [float(size) for size in partition(costs, n)], "a list of 2 numbers of layers is expected"),
        (lambda costs, n: [size + 1 for size in partition(costs, n)], "there are 6 layers, and"),
        (lambda costs, n: (partition(costs, n), costs.clear())[0], "the list of costs was changed"),
        (by_halves_of_whole_numbers, "is possible"),
        (by_share, "costs 9000000008; 9000000005 is possible"),
        (lambda costs, n: partition(torch.tensor(costs).tolist(), n), "is possible"),
        (lambda costs, n: partition(torch.tensor(costs[::-1]).tolist(), n)[::-1], "is possible"),
    ],
)
def test_other_wrong_cuts_are_told_what_is_seen(answer, says):
    verdict = n12.check_cut(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_who_tries_all_cuts_is_told_that_nothing_came_back(monkeypatch):
    monkeypatch.setattr(n12, "PATIENCE", 0.3)

    def waits_for_ever(costs, n):
        while len(costs) == 60:
            pass
        return partition(costs, n)

    assert "nothing has come back after 0.3 seconds" in n12.check_cut(waits_for_ever).message
