"""What is particular about the checks of notebook 12; what all exercises have in common is in test_detectors."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from itertools import accumulate
from threading import current_thread

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from lib.pipeline import is_recomputing
from support import built
from support.kit.mistakes import edited
from support.kit.raised import InCaseError
from support.n12 import checks as n12
from support.n12 import guesses, parts, trials
from support.n12.given import Partitioned, tie, with_checkpoint
from support.n12.solved import MiniGPipe, Numbers, make_task, run_pipeline
from tools.project import ROOT

# ---- the parts that are handed out


@pytest.mark.parametrize(
    "nest",
    [
        lambda x: (torch.ones(2), x),
        lambda x: (torch.arange(2), x),
        lambda x: {"mask": torch.ones(2), "rows": [x]},
        lambda x: x * torch.ones(2, dtype=torch.complex64),
        lambda x: (torch.ones(2, requires_grad=True) * 1, x),
    ],
)
def test_a_tie_holds_a_micro_batch_back_whatever_lies_in_its_nest_beside_it(nest):
    order = []
    made = [torch.ones(2, requires_grad=True) * 1 for _ in range(2)]
    made[0].register_hook(lambda gradient: order.append(0))
    batches = [nest(x) for x in made]
    tie(batches, 1)
    outputs = [sum(x * 2 for x in tree_leaves(batch) if x.requires_grad) for batch in batches]
    outputs[1].register_hook(lambda gradient: order.append(1))
    for number, x in enumerate((outputs[1], made[0])):  # of what is ready backward takes the highest number
        x.grad_fn._set_sequence_nr(number)
    (outputs[0] + outputs[1]).abs().sum().backward()
    assert order == [1, 0]


def test_a_tie_makes_no_gradient_where_the_layers_have_none():
    held, unused = (torch.ones(2, requires_grad=True) for _ in range(2))
    batches = [(held * 1, unused * 1), torch.ones(2, requires_grad=True)]
    tie(batches, 1)
    (batches[0][0] + batches[1]).sum().backward()
    assert held.grad is not None
    assert unused.grad is None


def test_a_famous_guess_of_a_step_is_told_as_a_number_and_the_exact_one_is_a_hit():
    for said in (39, 39.0, "39"):
        assert "the mean of 78 and 0" in guesses.guess_step(said).message
    assert "that is it" in guesses.guess_step(100 * (3 / 2.5625 - 1)).message


# ---- exercise 3


class AllTiesFirst(Partitioned):
    """Tie the whole clock first, and make the tasks behind it, the last partition first."""

    def __init__(self, layers, balance, chunks, checkpoint="except_last"):
        super().__init__()
        rest = list(layers)
        self.partitions = nn.ModuleList()
        for size in balance:
            self.partitions.append(nn.Sequential(*rest[:size]))
            rest = rest[size:]
        self.chunks = chunks
        self.kept = {"always": 0, "except_last": 1, "never": chunks + 1}[checkpoint]

    def forward(self, x):
        batches = built.scatter(x, self.chunks)
        m = len(batches)
        n = len(self.partitions)
        with built.spawn_workers([torch.device("cpu")] * n) as queues:
            for k in range(m + n - 1):
                clock = [(k - j, j) for j in range(n) if 0 <= k - j < m]
                for i, _ in clock:
                    if i:
                        tie(batches, i)
                tasks = {j: built.Task(None, compute=self.pair(batches[i], i, j, m)) for i, j in clock[::-1]}
                for j, batch in built.run_clock(tasks, *queues).items():
                    batches[k - j] = batch
        return built.gather(batches)

    def pair(self, x, i, j, m):
        again = i < m - self.kept
        return partial(with_checkpoint, self.layer(i, j), x) if again else partial(self.layer(i, j), x)


def test_a_pipeline_with_another_order_of_lines_passes():
    assert n12.check_mini(AllTiesFirst)


def answering(gradients):
    """Return what answers a task in a pool, whose thread begins with the first one."""

    def answer(task):
        with torch.set_grad_enabled(gradients):
            return task.compute()

    return answer


@contextmanager
def pools_of_one_thread(n):
    with ExitStack() as stack:
        yield [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(n)]


def run_in_pools(tasks, pools):
    answer = answering(torch.is_grad_enabled())
    waiting = {j: pools[j].submit(answer, task) for j, task in tasks.items()}
    return {j: each.result() for j, each in waiting.items()}


def test_workers_that_begin_with_their_first_task_pass():
    edits = [
        ('spawn_workers([torch.device("cpu")] * n) as queues', "pools_of_one_thread(n) as pools"),
        ("run_clock(tasks, *queues)", "run_in_pools(tasks, pools)"),
    ]
    names = {"pools_of_one_thread": pools_of_one_thread, "run_in_pools": run_in_pools}
    assert n12.check_mini(edited(MiniGPipe, *edits, names=names))


def test_workers_that_take_turns_are_not_said_to_be_started_anew():
    edits = [
        ('spawn_workers([torch.device("cpu")] * n) as queues', "pools_of_one_thread(n) as pools"),
        ("run_clock(tasks, *queues)", "run_in_pools(tasks, pools.append(pools.pop(0)) or pools)"),
    ]
    names = {"pools_of_one_thread": pools_of_one_thread, "run_in_pools": run_in_pools}
    message = n12.check_mini(edited(MiniGPipe, *edits, names=names)).message
    assert message.endswith("was computed by 2 threads: a partition has one worker for all clocks.")


@pytest.mark.parametrize(
    "old, new, says",
    [
        (
            "run_clock(tasks, *queues)",
            "{j: queues[1][j].get() for j in tasks}",
            "it does not come back: is there a get",
        ),
        ("return gather(batches)", "return batches", "the layers return a tensor, and forward returned list"),
        ("return gather(batches)", "return None", "forward returned None"),
        ("return gather(batches)", "return gather(batches[::-1])", "the output is not that of the layers"),
        ("for size in balance)", "for size in balance[::-1])", "model.partitions should hold"),
        ("for size in balance)", "for size in balance).eval()", "the caller's layers are in evaluation mode"),
        ('[torch.device("cpu")] * n', '[torch.device("cpu")]', "your code raised IndexError"),
        ("scatter(x, self.chunks)", "[x]", "micro-batches of [6] rows; scatter makes [2, 2, 2]"),
        ("scatter(x, self.chunks)", "[x[k::3] for k in range(3)]", "the partitions computed other rows than those"),
        (
            "nn.Sequential(*islice(layers, size)) for",
            "next(layers) if size == 1 else nn.Sequential(*islice(layers, size)) for",
            "balance [1, 2], 6 rows, chunks=3, 'never': model.partitions should hold one nn.Sequential per partition",
        ),
        ("layer = self.layer(i, j)", "layer = deepcopy(self.layer(i, j))", "gets no gradient"),
        ("self.layer(i, j)", "(self.layer(i, j), self.layer(i, j))[0]", "asked self.layer(0, 0) 2 ×, not once"),
        ("m, n = len", "self.layer(3, 0)\n        m, n = len", "asked self.layer(3, 0), but m is 3 and n is 1"),
        ("self.layer(i, j)", "partial((lambda i, j, x: self.layer(i, j)(x)), i, j)", "asked self.layer(0, 0) 0 ×"),
    ],
)
def test_other_wrong_pipelines_are_told_what_is_seen(monkeypatch, old, new, says):
    monkeypatch.setattr(n12, "PATIENCE", 4.0)  # the right ones never wait for long, a wrong one waits for ever
    verdict = n12.check_mini(edited(MiniGPipe, (old, new), names={"deepcopy": deepcopy}))
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize(
    "new, says",
    [
        (
            "[x[0] if isinstance(x, tuple) and len(x) == 1 else x for x in scatter(x, self.chunks)]",
            "with a tuple of one tensor: the layers return a tuple of 1, and forward returned Tensor.",
        ),
        (
            "[x[:2] if isinstance(x, tuple) else x for x in scatter(x, self.chunks)]",
            "with a tuple of three tensors: the layers return a tuple of 3, and forward returned a tuple of 2.",
        ),
        (
            "[x[::-1] if isinstance(x, tuple) else x for x in scatter(x, self.chunks)]",
            "with a tuple of three tensors: the output is not that of the layers.",
        ),
    ],
)
def test_tuples_of_one_and_of_three_come_out_as_the_layers_return_them(new, says):
    assert parts.fault_of_nests(edited(MiniGPipe, ("scatter(x, self.chunks)", new))) == says


LOOKED_UP = [
    ("layer = self.layer(i, j)", "self.kept[i, j], layer = self.layer(i, j), self.inside(i, j)"),
    ("    def forward", "    def inside(self, i, j):\n        return lambda x: self.kept[i, j](x)\n\n    def forward"),
]


def test_a_recompute_that_takes_what_another_batch_has_left_is_told():
    goes_on = edited(MiniGPipe, *LOOKED_UP, ("m, n = len", "self.__dict__.setdefault('kept', {})\n        m, n = len"))
    said = parts.fault_of_a_later_batch(goes_on)
    assert said.endswith("behind the forward of another batch: the gradient of partition 0 is 40, not 32.")
    begins_anew = edited(MiniGPipe, *LOOKED_UP, ("m, n = len", "self.kept = {}\n        m, n = len"))
    with pytest.raises(InCaseError, match="in backward behind the forward of another batch"):
        parts.fault_of_a_later_batch(begins_anew)


def test_workers_that_outlive_an_interrupt_are_told():
    spawn = 'spawn_workers([torch.device("cpu")] * n)'
    by_hand = f"workers = {spawn}\n        queues = workers.__enter__()\n        try:"
    end = "workers.__exit__(None, None, None)"
    ended = f"except Exception:\n            {end}\n            raise\n        {end}\n        return gather"
    answer = edited(MiniGPipe, (f"with {spawn} as queues:", by_hand), ("return gather", ended))
    assert "interrupted in forward's own thread: 2 threads are left" in n12.check_mini(answer).message


def asks_in_the_worker(pipe, i, j, layer, x):
    pipe.layer(i, j)
    return layer(x)


def asks_in_backward(pipe, i, j, layer, x):
    if is_recomputing():
        pipe.layer(i, j)
    return layer(x)


@pytest.mark.parametrize("asks", [asks_in_the_worker, asks_in_backward])
def test_who_asks_for_a_layer_a_second_time_is_told(asks):
    edit = ("if i < stop:", "layer = partial(asks, self, i, j, layer)\n                    if i < stop:")
    message = n12.check_mini(edited(MiniGPipe, edit, names={"asks": asks})).message
    assert "asked self.layer(0, 0) 2 × in all" in message


def tied(layer, pair):
    if len(pair) > 1:
        tie(pair, 1)
    return layer(pair[-1])


def tied_in_place(layer, batches, i):
    if i > 0:
        tie(batches, i)
    return layer(batches[i])


@pytest.mark.parametrize(
    "new, says",
    [
        ("partial(tied, layer, batches[max(i - 1, 0) : i + 1])", "a tie is made in a worker's thread"),
        ("partial(tied_in_place, layer, batches, i)", ""),  # in one list a tie may get lost, which is told first
    ],
)
def test_ties_that_workers_make_are_told_even_if_the_graph_is_right(new, says):
    names = {"tied": tied, "tied_in_place": tied_in_place}
    edits = ("tie(batches, i)", "pass"), ("partial(layer, batches[i])", new)
    verdict = n12.check_mini(edited(MiniGPipe, *edits, names=names))
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_a_recompute_that_calls_what_another_pair_was_given_is_told():
    edits = [
        ("for clock in clock_cycles(m, n):", "given = {}\n            for clock in clock_cycles(m, n):"),
        (
            "layer = self.layer(i, j)",
            "given[j] = self.layer(i, j)\n                    layer = partial(lambda j, x: given[j](x), j)",
        ),
    ]
    message = n12.check_mini(edited(MiniGPipe, *edits)).message
    assert "what self.layer(0, 0) returned was called 1 ×, not 2 ×" in message


@pytest.mark.parametrize(
    "new, says",
    [
        (
            "self.train()\n        m, n = len",
            "'always', in eval mode: the caller's layers are in training mode afterwards",
        ),
        (
            "torch.set_grad_enabled(self.training and torch.is_grad_enabled())\n        m, n = len",
            "'always', in eval mode: the output has no graph",
        ),
    ],
)
def test_a_pipeline_that_minds_the_mode_of_its_layers_is_told(new, says):
    assert says in n12.check_mini(edited(MiniGPipe, ("m, n = len", new))).message


@pytest.mark.parametrize(
    "balance, rows, mode", [((2, 1), 4, "always"), ((1, 1, 1), 6, "except_last"), ((1, 2), 8, "never")]
)
def test_on_a_cpu_an_untied_pipeline_happens_to_go_backward_in_order_as_the_notebook_says(balance, rows, mode):
    case = trials.Case(balance, rows, rows, mode)
    watch = case.watch(20.0)
    watch.caller = current_thread()
    layers = [trials._Layer(seed) for seed in range(sum(balance))]
    for j, first in enumerate(accumulate(balance, initial=0)):
        if j < len(balance):
            layers[first].watch = watch, j
    untied = edited(MiniGPipe, ("tie(batches, i)", "pass"))
    assert trials._run(untied, case, watch, layers, asks=True) == ""
    assert "does not hold every partition" in watch.unheld
    for j in range(len(balance)):
        assert [i for i, k in watch.went_back if k == j] == [*range(rows)][::-1]


@pytest.mark.parametrize(
    "old, new, says",
    [
        (
            "if i < stop:",
            "if i < stop and self.training:",
            "in eval mode: micro-batch 0 was computed 1 × in partition 0, not 2 ×",
        ),
        (
            "gather(batches)",
            "tuple(map(torch.cat, zip(*batches))) if isinstance(x, tuple) else torch.cat(batches)",
            "(integers): the layers return a tensor, and forward returned tuple",
        ),
        (
            "scatter(x,",
            "scatter(tuple(each.detach() for each in x) if isinstance(x, tuple) else x,",
            "(integers): the input gets no gradient",
        ),
        ("if i < stop:", "if i < stop and n > 1:", "balance [2], 6 rows, chunks=3, 'except_last': micro-batch 0 was"),
        ("if i > 0:", "if True:", "The last micro-batch goes first, and waits for none"),
        (
            "gather(batches)",
            "torch.cat(batches) if isinstance(x, torch.Tensor) else gather(batches)",
            "with a last layer that makes two tensors of one: your code raised TypeError",
        ),
        ("m, n = len", "self.zero_grad()\n        m, n = len", "the gradients that were there before are changed"),
        ("for size in balance)", "for size in balance)\n        balance.clear()", "the caller's layers or balance"),
        (
            "layers = iter(layers)",
            "own = [*layers]\n        del layers[:]\n        layers = iter(own)",
            "the caller's l",
        ),
        (
            "m, n = len(batches)",
            "self.m = getattr(self, 'm', len(batches))\n        m, n = self.m",
            "raised IndexError",
        ),
        (
            "m, n = len(batches)",
            "self.m = min(getattr(self, 'm', 99), len(batches))\n        m, n = self.m",
            "behind a batch of 2 rows: the output is not that of the layers",
        ),
        ("partial(with_checkpoint, layer)", "partial(with_checkpoint, self.partitions[j])", "has computed this pair"),
        (
            "partial(with_checkpoint, layer)",
            "partial(torch.utils.checkpoint.checkpoint, layer, use_reentrant=False)",
            "is_recomputing() is not true while a layer computes again",
        ),
        ("m - 1", "min(self.chunks, len(x)) - 1", "was computed 1 × in partition 0, not 2 ×"),
        ('"always": m,', '"always": m if m > 1 else 0,', "the last of 1, was computed 1 × in partition 0, not 2 ×"),
        ("iter(layers)", "iter([*layers.children()])", "one layer in two places: model.partitions should hold"),
        ("iter(layers)", "iter(lib_flatten(layers))", "a nested Sequential among them, balance [1, 1]: model.par"),
        ("iter(layers)", "map(partial(getattr, layers), map(str, range(99)))", "with named layers, a nested"),
        ("nn.ModuleList(", "as_sequential(", "model.partitions should be an nn.ModuleList, not Sequential"),
    ],
)
def test_a_tie_in_one_mode_only_and_a_changed_model_are_told(old, new, says):
    names = {"lib_flatten": n12.flatten_sequential, "as_sequential": lambda parts: nn.Sequential(*parts)}
    assert says in n12.check_mini(edited(MiniGPipe, (old, new), names=names)).message


def test_the_repaired_pipeline_needs_no_name_that_exercise_3_leaves_to_the_reader():
    own_names = edited(MiniGPipe, ("self.chunks, self.checkpoint =", "self.at_most, self.mode ="))
    own_names.forward = edited(MiniGPipe, ("self.chunks)", "self.at_most)"), ("self.checkpoint]", "self.mode]")).forward
    assert n12.check_mini(own_names)
    notebook = json.loads((ROOT / "notebooks" / "12_gpipe.ipynb").read_text(encoding="utf-8"))
    cells = ("".join(cell["source"]) for cell in notebook["cells"])
    shown = next(cell for cell in cells if "class Repaired(Pipe)" in cell).partition("\n\n\nprint")[0]
    space = {"Pipe": own_names, "OwnNumbers": Numbers}
    exec(shown, space)
    pipe = space["Repaired"](nn.Sequential(nn.Linear(2, 2), nn.ReLU()), [1, 1], 3)
    assert pipe(torch.ones(5, 2)).shape == (5, 2)


LATE = """for i, j in clock:
            batches[i] = done[j][0]
        for i, j in clock:
            if i > 0:
                depend(batches, i)"""
PUT_BACK_IN = "for i, j in clock:\n            batches[i] = done[j][0]"


@pytest.mark.costly
@pytest.mark.parametrize(
    "edits, where",
    [
        ([("if i > 0:", "if i > 0 and j == n - 1:")], "[1, 2], 6 rows, chunks=3, 'never': the outcome"),
        ([("if i > 0:", "if i > 0 and j > 0:")], "In partition 0 no way leads from micro-batch 1 to micro-batch 0"),
        ([("if i > 0:", "if i > 0 and j == 0:")], "In partition 1 no way leads from micro-batch 1 to micro-batch 0"),
        ([("if i > 0:", "if 0 < i < stop:")], "In partition 0 no way leads"),
        ([("if i > 0:", "if i > 1:")], "In partition 0 no way leads from micro-batch 1 to micro-batch 0"),
        ([("if i > 0:", "if False:"), (PUT_BACK_IN, LATE)], "In partition 0 no way leads"),
    ],
)
def test_a_tie_in_some_partitions_or_micro_batches_only_or_too_late_is_told(edits, where):
    verdict = n12.check_pipeline(edited((make_task, run_pipeline), *edits)[1])
    assert verdict.status == "wrong"
    assert "does not hold every partition to its order" in verdict.message
    assert where in verdict.message
    ties_nothing_there = "stop" in edits[0][1] or "j > 0" in edits[0][1]  # in "never"; in one partition
    assert ("Nothing ties" in verdict.message) is ties_nothing_there


def test_a_tie_takes_the_tensor_of_a_nest_that_can_have_a_gradient():
    weight = torch.ones(2, requires_grad=True)
    batches = [(torch.arange(2), weight * 2), (torch.arange(2), weight * 3)]
    tie(batches, 1)
    assert [name(x) for batch in batches for x in batch] == ["", "ForkBackward", "", "JoinBackward"]
    assert [leaf.tolist() for leaf in tree_leaves(batches)] == [[0, 1], [2, 2], [0, 1], [3, 3]]


def test_integers_alone_have_no_way_back_and_are_not_tied():
    layers = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))
    words = torch.arange(8).reshape(4, 2)
    for mode in ("always", "except_last", "never"):
        output = MiniGPipe(layers, [1, 1], 4, mode)(words)
        assert torch.allclose(output, layers(words))
        layers.zero_grad()
        output.square().sum().backward()
        found = [weight.grad.clone() for weight in layers.parameters()]
        layers.zero_grad()
        layers(words).square().sum().backward()
        for mine, weight in zip(found, layers.parameters(), strict=True):
            assert torch.allclose(mine, weight.grad)


def name(x):
    return "" if x.grad_fn is None else x.grad_fn.name().split("::")[-1]
