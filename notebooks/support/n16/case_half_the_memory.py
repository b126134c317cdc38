"""Case 7 of notebook 16: blocks that are computed once more in backward, with another dropout than in forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.kit.mistakes import edited
from support.n16.casebook import case, unfinished, with_evidence
from support.n16.rank import Stand
from support.n16.series import ends_of_trials

# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: D103


def job_7(dist, blocks, rows, targets, seed, steps, learning_rate, recompute=True):
    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, block, x, *parameters):
            ctx.block = block
            ctx.state = torch.get_rng_state()
            ctx.save_for_backward(x)
            return block(x)

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            x = x.detach().requires_grad_()
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_rng_state(ctx.state)
                out = ctx.block(x)
            out.backward(gradient)  # adds to the gradients of the block
            return None, x.grad, *[None for _ in ctx.block.parameters()]

    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(blocks.parameters(), lr=learning_rate)
    for step in range(steps):
        x = rows
        for block in blocks:
            x = Recomputed.apply(block, x, *block.parameters()) if recompute else block(x)
        loss = F.mse_loss(x, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.3f}")
    return [parameter.detach() for parameter in blocks.parameters()]


_KEPT = "            ctx.state = torch.get_rng_state()\n"
_FORKED = "with torch.random.fork_rng(devices=[]), torch.enable_grad():"
_SET = "                torch.set_rng_state(ctx.state)\n"


def sick_7():
    """Return the job as the notebook has it."""
    return edited(job_7, (_KEPT, ""), (_FORKED, "with torch.enable_grad():"), (_SET, ""))


#: A quarter of a million is dropped in forward, and of these the second draw keeps three quarters.
FORECAST_7 = 187_500.0  # about so many: a float is due to 0.3 %


def with_calls_counted(dist, name, blocks, **given):
    from torch.multiprocessing.reductions import StorageWeakRef  # also of what a checkpoint keeps detached
    from torch.overrides import TorchFunctionMode

    calls = [0 for _ in blocks]
    kept = [0 for _ in blocks]
    together = 0
    # What was made within a block in its last run, if it is still there.
    inside: list[list[Any]] = [[] for _ in blocks]

    class Noting(TorchFunctionMode):
        def __init__(self, made):
            super().__init__()
            self.made = made

        def __torch_function__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.made.append(StorageWeakRef(out.untyped_storage()))
            return out

    def still_there(number):
        return sum(not each.expired() for each in inside[number])

    def hooks_of(number):
        noting = Noting(inside[number])

        def begin(*_):
            nonlocal together
            calls[number] += 1
            if calls[number] % 2 == 0:
                kept[number] += still_there(number)
                together += sum(still_there(other) for other in range(len(blocks)) if other != number)
            inside[number].clear()
            noting.__enter__()  # until the end of this run

        def end(module, inputs, out):
            noting.__exit__(None, None, None)
            if out is not None:  # a checkpoint may stop before the end
                own = StorageWeakRef(out.untyped_storage())
                inside[number][:] = [each for each in inside[number] if each != own]

        return begin, end

    for number, block in enumerate(blocks):
        begin, end = hooks_of(number)
        # By its parts: whoever runs these one by one runs the block.
        block[0].register_forward_pre_hook(begin)
        block[-1].register_forward_hook(end, always_call=True)
    return globals()[name](dist, blocks, **given), calls, kept, together


def drawn_7(seed: int, depth: int, dropped: float, width: int = 6) -> dict[str, Any]:
    """Return blocks with dropout, rows and targets."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, width),
                nn.Dropout(dropped),
                nn.Tanh(),
                nn.Dropout(dropped),
                nn.Linear(width, width),
            )
            for _ in range(depth)
        )
        rows = torch.randn(16, width)
        return {"blocks": blocks, "rows": rows, "targets": rows.flip(1)}


#: Seed, blocks, share that is dropped, steps.
TRIALS = ((1, 1, 0.5, 3), (2, 3, 0.25, 4), (3, 2, 0.8, 3), (4, 4, 0.1, 2))


def fault_of_7(job: Callable[..., Any]) -> str:
    """Run it with each of the trials; weights must be those of a run that keeps everything."""
    trials = []
    for seed, depth, dropped, steps in TRIALS:
        given = {"seed": seed, "steps": steps, "learning_rate": 0.1}
        trials.append({"name": job.__code__.co_name, **drawn_7(seed, depth, dropped), **given})
    kept_all = {**trials[0], **drawn_7(*TRIALS[0][:3]), "recompute": False}
    found = ends_of_trials(with_calls_counted, 1, [*trials, kept_all], job)
    for (seed, depth, dropped, steps), (stand,) in zip(TRIALS, found, strict=False):
        where = f"with {depth} block{'s' * (depth > 1)}, dropout {dropped}, {steps} steps and seed {seed}"
        due = of_one_that_keeps(seed, steps, **drawn_7(seed, depth, dropped))
        said = unfinished(where, [stand]) or _fault_of_state(where, stand, due, steps)
        if said:
            return with_evidence(said, found)
    (stand,) = found[-1]
    said = unfinished("without recompute", [stand]) or _fault_without(stand) or _fault_of_a_block_twice(job)
    return with_evidence(said, found)


def _fault_of_a_block_twice(job: Callable[..., Any]) -> str:
    """Run it with one block at two places, where each has a draw of its own."""

    def drawn():
        given = drawn_7(5, 2, 0.5)
        blocks = given["blocks"]
        return {**given, "blocks": nn.ModuleList([*blocks, blocks[0]])}

    where = "with a block that stands at two places"
    trial = {**drawn(), "seed": 5, "steps": 3, "learning_rate": 0.1}
    ((stand,),) = ends_of_trials(job, 1, [trial])
    return unfinished(where, [stand]) or _fault_of_weights(
        where, stand.value, of_one_that_keeps(5, 3, **drawn())
    )


def _fault_without(stand: Stand) -> str:
    """Look at a run of the first trial that keeps everything."""
    seed, depth, dropped, steps = TRIALS[0]
    got, calls, *_ = stand.value
    most: int = max(calls)
    if most > steps:
        return f"without recompute a block runs {most} times in {steps} steps; that was once a step."
    return _fault_of_weights(
        "without recompute", got, of_one_that_keeps(seed, steps, **drawn_7(seed, depth, dropped))
    )


def _fault_of_state(where: str, stand: Stand, due: list[Tensor], steps: int) -> str:
    got, calls, kept, together = stand.value
    if not isinstance(got, list) or len(got) != len(due) or not all(isinstance(w, Tensor) for w in got):
        return f"{where} the job returned {got!r}, not the weights."
    if min(calls) < 2 * steps:
        return f"{where} a block runs {min(calls)} times in {steps} steps, where twice a step is due."
    if max(calls) > 2 * steps:
        return f"{where} a block runs {max(calls)} times in {steps} steps; twice a step is enough."
    if any(kept):
        return f"{where} a block still keeps what it has computed in forward when it runs again in backward."
    if together:
        return f"{where} a block runs again in backward while another's inside is still kept."
    return _fault_of_weights(where, got, due)


def _fault_of_weights(where: str, got: list[Tensor], due: list[Tensor]) -> str:
    if _equal(got, due):
        return ""
    apart = max((one - other).abs().max().item() for one, other in zip(got, due, strict=True))
    return f"{where} the weights are up to {apart:.2g} from those of a run that keeps all activations."


def _equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.allclose(one, other, rtol=0, atol=1e-6) for one, other in zip(some, others, strict=True))


def of_one_that_keeps(
    seed: int, steps: int, blocks: nn.ModuleList, rows: Tensor, targets: Tensor
) -> list[Tensor]:
    """Return the weights of a run that computes nothing twice."""
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(steps):
            x = rows
            for block in blocks:
                x = block(x)
            optimizer.zero_grad()
            torch.autograd.backward(F.mse_loss(x, targets))
            optimizer.step()
    return [parameter.detach() for parameter in blocks.parameters()]


check_job_7 = case(
    7,
    job_7,
    FORECAST_7,
    fault_of_7,
    "each block runs twice a step, and its weights are those of a run that keeps everything.",
    {
        "Backward drops others than forward has dropped.": sick_7(),
        "The first step drops the right ones; then backward has turned the generator back for the next.": edited(
            job_7, (_FORKED, "with torch.enable_grad():")
        ),
        "One state for all blocks: it is that of the last.": edited(job_7, ("ctx.state", "Recomputed.state")),
        "Then nothing is dropped.": edited(job_7, ("out = ctx.block(x)", "out = ctx.block.eval()(x)")),
        "One seed for all blocks and steps drops the same ones for ever.": edited(
            sick_7(),
            ("            return block(x)", "            torch.manual_seed(0)\n            return block(x)"),
            ("                out =", "                torch.manual_seed(0)\n                out ="),
        ),
        "One checkpoint round all blocks: backward makes all of it anew before it uses any.": edited(
            job_7,
            ("        for block in blocks:\n    ", "        whole = nn.Sequential(*blocks)\n"),
            (
                "Recomputed.apply(block, x, *block.parameters())",
                "Recomputed.apply(whole, x, *whole.parameters())",
            ),
            (" if recompute else block(x)", " if recompute else whole(x)"),
        ),
        "That is how it was before somebody halved the memory.": edited(
            sick_7(),
            ("Recomputed.apply(block, x, *block.parameters()) if recompute else block(x)", "block(x)"),
        ),
    },
    {
        "Some of those are dropped both times.": 250_000,
        "That counts those which forward has kept and backward dropped, too.": 375_000,
        "These are dropped both times.": 62_500,
    },
)
"""Case 7: (job_7, forecast_7)."""
