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
    ],
)
def test_what_is_said_of_a_symptom_is_true_whatever_its_cause(check, answer, changes, says):
    verdict = check(edited(answer, *changes))
    assert verdict.status == "wrong"
    assert says in verdict.message
    assert not any(cause in verdict.message for cause in ("mul_", "copy_", "leave it out", "read it into"))


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
