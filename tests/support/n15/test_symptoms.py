"""What the checks of notebook 15 say of a symptom is true of each answer that shows it, whatever its cause."""

import pytest

from support.kit.mistakes import edited
from support.n15 import checks as n15
from support.n15.solved import average, clip, follow, pipeline_step

SPLIT = ("dist.all_reduce(flat, group=group)", "flat = dist.all_reduce(flat, group=group)"), ("flat / replicas", "flat")
NONE_FOUND = (
    ("is not None", "is not None and parameter.grad.requires_grad"),
    ("    if not gradients:\n        return\n", ""),
)
COPIED = "gradient.copy_(mean.view_as(gradient))"
COPIES = [
    f"gradient.{way}" for way in ("contiguous().view(-1)[:] = mean", "flatten()[:] = mean", "reshape(-1).copy_(mean)")
]
NOT_CONTIGUOUS = "Of a gradient that is not contiguous reshape, flatten and contiguous give a copy, "
CLONED = ("parameter.grad for", "parameter.grad.clone() for")


@pytest.mark.parametrize(
    "check, answer, changes, says",
    [
        (n15.check_average, average, SPLIT, "all_reduce returns None"),
        (n15.check_clip, clip, [("    dist.all", "    squares = dist.all")], "all_reduce returns None"),
        (n15.check_clip, clip, [("if norm > max_norm", "if norm < max_norm")], "This gradient is as long as before."),
        (n15.check_clip, clip, [CLONED], "This gradient is as long as before."),
        (n15.check_average, average, [CLONED], "is still this replica's own, after 1 all-reduce."),
        (n15.check_average, average, NONE_FOUND, "No gradient was found"),
        *((n15.check_average, average, [(COPIED, copy)], NOT_CONTIGUOUS) for copy in COPIES),
        (n15.check_average, average, [("gradient.flatten() for", "gradient.tolist() for")], "but got list"),
    ],
)
def test_what_is_said_of_a_symptom_is_true_whatever_its_cause(check, answer, changes, says):
    verdict = check(edited(answer, *changes))
    assert verdict.status == "wrong"
    assert says in verdict.message
    assert not any(cause in verdict.message for cause in ("mul_", "copy_", "leave it out", "read it into"))


STAYS_OPEN = ("    for handle in begun:\n", "    for handle in begun if before is None else []:\n")
TOP = (
    "    for op, i in actions:\n",
    "    for op, i in actions:\n        while begun:\n            begun.pop().wait()\n",
)
TWICE = [
    ("        y = part(x)\n", "        with torch.set_grad_enabled(behind is None):\n            y = part(x)\n"),
    ("y.backward(gradient)", "part(x).backward(gradient)"),
]
BEGUN = "begun.append(dist.isend(x.grad, before))"


@pytest.mark.parametrize(
    "check, answer, changes, says, unsaid",
    [
        (
            n15.check_pipeline_step,
            pipeline_step,
            [("y.item()", "y.item(); y = points")],
            "or with the gradient",
            "front",
        ),
        (
            n15.check_pipeline_step,
            pipeline_step,
            [("images.chunk", "images.float().chunk")],
            "are of float64",
            "Receive",
        ),
        (n15.check_pipeline_step, pipeline_step, [("empty_like(y)", "empty(y.shape)")], "what is sent.", "layers"),
        (
            n15.check_pipeline_step,
            pipeline_step,
            [("before is not None", "before")],
            "rank 1 has returned.",
            "meanwhile",
        ),
        (n15.check_pipeline_step, pipeline_step, [("+= y.item()", "+= None"), ("0.0", "0")], "NoneType", "rank:"),
        (n15.check_pipeline_step, pipeline_step, TWICE, "done twice", "graph is thrown"),
        (n15.check_follow, follow, [STAYS_OPEN], "each rank has to wait for its sends.", "one way"),
        (n15.check_follow, follow, [TOP], "before the next action might", "as soon as"),
        (
            n15.check_follow,
            follow,
            [(BEGUN, f"{BEGUN}; x.grad.zero_()")],
            "nothing may be written there.",
            "of its own",
        ),
    ],
)
def test_a_reason_is_told_of_those_answers_only_of_which_it_is_true(check, answer, changes, says, unsaid):
    points = [("y = part(x)\n", "y = points = part(x)\n")] if "points" in str(changes) else []
    verdict = check(edited(answer, *points, *changes))
    assert verdict.status == "wrong"
    assert says in verdict.message
    assert unsaid not in verdict.message


def test_a_step_that_moves_weights_is_not_told_of_buffers():
    update = "[p.detach().sub_(p.grad) for p in part.parameters()]"
    verdict = n15.check_pipeline_step(
        edited(pipeline_step, ("dist.send(x.grad, before)", "dist.send(x.grad, before); " + update))
    )
    assert "modified by an inplace" in verdict.message
    assert "write nothing into that." in verdict.message
    assert "micro-batch into" not in verdict.message


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    "old, new",
    [("dist.recv(gradient, behind)", "dist.recv(y.grad, behind)"), ("recv(x, before)", "recv(None, before)")],
)
def test_none_that_is_to_be_received_into_is_not_taken_for_a_gradient_that_is_missing(old, new):
    for check, answer in ((n15.check_pipeline_step, pipeline_step), (n15.check_follow, follow)):
        verdict = check(edited(answer, (old, new)))
        assert verdict.status == "wrong"
        assert "recv needs a tensor, and got None" in verdict.message
        assert "autograd" not in verdict.message
