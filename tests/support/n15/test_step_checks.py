"""What is particular about the checks of a step of a pipeline: exercises 1 and 2 of notebook 15."""

import pytest
import torch
from torch.nn import functional as F

from support.kit.mistakes import edited
from support.n15 import checks as n15
from support.n15.orders import drawn_order
from support.n15.solved import follow, pipeline_step

# ---- exercise 1


def test_a_pipeline_that_goes_back_from_the_last_micro_batch_is_right_too():
    assert n15.check_pipeline_step(edited(pipeline_step, ("in kept:", "in kept[::-1]:")))  # as torchgpipe does


def test_a_step_of_two_functions_and_a_loss_of_sums_is_right_too():
    def by_halves(part, images, targets, m, before, behind, shape, dist):
        inputs = []
        outputs = []
        for i in range(m):
            if before is None:
                inputs.append(images.chunk(m)[i])
            else:
                x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
                dist.irecv(x.data, before).wait()
                inputs.append(x)
            outputs.append(part(inputs[-1]))
            if behind is not None:
                dist.isend(outputs[-1].detach(), behind).wait()
        if behind is None:
            losses = [F.cross_entropy(y, t, reduction="sum") for y, t in zip(outputs, targets.chunk(m), strict=True)]
            outputs = [loss / len(targets) for loss in losses]
            total = sum(outputs).detach()
        for x, y in zip(inputs, outputs, strict=True):
            if behind is None:
                y.backward()
            else:
                arrived = torch.empty_like(y)
                dist.recv(arrived, behind)
                torch.autograd.backward([y], [arrived])
            if before is not None:
                dist.send(x.grad, before)
        return total.item() if behind is None else None

    assert n15.check_pipeline_step(by_halves)


def test_a_fault_names_rank_and_size():
    def forgets(part, images, targets, m, before, behind, shape, dist):
        return 0.0

    verdict = n15.check_pipeline_step(forgets)
    assert "2 ranks, 4 micro-batches: a gradient of rank 0 is 0 times that of one process" in verdict.message
    verdict = n15.check_average(lambda parameters, replicas, group, dist: list(parameters))
    assert "gradient 0 of replica 0 is still this replica's own, after 0 all-reduces" in verdict.message


def test_a_loss_of_the_whole_batch_and_gradients_asked_for_by_hand_are_right_too():
    def by_hand(part, images, targets, m, before, behind, shape, dist):
        weights = list(part.parameters())
        pairs = []
        for i in range(m):
            x = images.chunk(m)[i] if before is None else torch.empty(shape, dtype=torch.float64)
            if before is not None:
                dist.recv(x, before)
                x.requires_grad_()
            y = part(x)
            if behind is not None:
                dist.send(y.detach(), behind)
            pairs.append((x, y))
        total = None
        if behind is None:
            points = [y.detach().requires_grad_() for _, y in pairs]
            loss = F.cross_entropy(torch.cat(points), targets)
            total = loss.item()
            of_points = torch.autograd.grad(loss, points)
        for i, (x, y) in enumerate(pairs):
            g = torch.empty_like(y)
            if behind is None:
                g = of_points[i]
            else:
                dist.recv(g, behind)
            wanted = ([] if before is None else [x]) + weights
            gradients = torch.autograd.grad(y, wanted, g)
            if before is not None:
                dist.send(gradients[0], before)
            add_to(weights, gradients[len(wanted) - len(weights) :])
        return total

    def add_to(weights, gradients):
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient if weight.grad is None else weight.grad + gradient

    assert n15.check_pipeline_step(by_hand)


@pytest.mark.parametrize(
    "check, answer, last",
    [
        (n15.check_pipeline_step, pipeline_step, [("y.backward()", "gradient = None")]),
        (n15.check_follow, follow, []),
    ],
)
def test_a_backward_in_two_halves_is_one_backward(check, answer, last):
    of_input = "torch.autograd.grad(y, x, gradient, retain_graph=True)[0]"
    of_weights = "torch.autograd.backward(y, gradient, inputs=list(part.parameters()))"
    sent = "send(x.grad, before)"
    halves = [
        ("y.backward(gradient)", f"{of_weights} if before is None else None"),
        (sent, f"{sent}; {of_weights}" if last else f"{sent}); {of_weights[:-1]}"),
        ("x.grad", of_input),
    ]
    assert check(edited(answer, *last, *halves))


@pytest.mark.parametrize(
    "changes, says",
    [
        (
            (("torch.empty_like(y)", "torch.empty(shape, dtype=y.dtype)"),),
            "rank 0 receives 128 values of rank 1, which sends 12",
        ),
        ((("y.item()", "y"),), "a tensor with its graph"),
        (
            (("    kept, total", "    for p in part.parameters():\n        p.grad = None\n    kept, total"),),
            "nothing is left",
        ),
        (
            (("    return total", "    for p in part.parameters():\n        p.grad *= 2\n    return total"),),
            "its length away",
        ),
        (
            (
                (
                    "    for x, y in kept:\n",
                    "    came = []\n    for _, y in kept if behind is not None else []:\n"
                    "        came.append(torch.empty_like(y))\n        dist.recv(came[-1], behind)\n"
                    "    for x, y in kept:\n",
                ),
                ("            gradient = torch.empty_like(y)\n            dist.recv(gradient, behind)\n", ""),
                ("y.backward(gradient)", "y.backward(came.pop(0))"),
            ),
            "no rank goes back before the one behind has done all its backwards",
        ),
    ],
)
def test_other_wrong_steps_are_told_what_is_seen(changes, says):
    verdict = n15.check_pipeline_step(edited(pipeline_step, *changes))
    assert verdict.status == "wrong"
    assert says in verdict.message, verdict


def test_who_waits_for_all_messages_before_the_first_forward_is_not_told_of_gradients():
    receives_first = edited(
        pipeline_step,
        (
            "    for i in range(m):\n",
            "    inputs = []\n    for i in range(m):\n"
            "        x = images.chunk(m)[i] if before is None else torch.empty(shape, dtype=torch.float64)\n"
            "        if before is not None:\n            dist.recv(x, before)\n            x.requires_grad_()\n"
            "        inputs.append(x)\n    for i in range(m):\n",
        ),
        (
            "        x = images.chunk(m)[i] if before is None else torch.empty(shape, dtype=torch.float64)\n"
            "        if before is not None:\n            dist.recv(x, before)\n            x.requires_grad_()\n"
            "        y = part(x)",
            "        x = inputs[i]\n        y = part(x)",
        ),
    )
    sends_last = edited(
        pipeline_step,
        ("            dist.send(y.detach(), behind)\n", "            pass\n"),
        (
            "    for x, y in kept:\n",
            "    for _, y in kept if behind is not None else []:\n"
            "        dist.send(y.detach(), behind)\n    for x, y in kept:\n",
        ),
    )
    for answer in (receives_first, sends_last):
        verdict = n15.check_pipeline_step(answer)
        assert "takes 13 ticks, and 10 are enough" in verdict.message
        assert "the next rank begins only when all forwards before it are done" in verdict.message
        assert "gradients go back" not in verdict.message


@pytest.mark.parametrize(
    "line, says",
    [
        ("part.eval()", "the module of rank 0 is in eval mode after the step"),
        ("images is None or images.requires_grad_(True)", "the images ask for a gradient after the step"),
    ],
)
def test_what_a_step_is_given_stays_as_it_was(line, says):
    answer = edited(pipeline_step, ("    kept, total = [], 0.0", f"    {line}\n    kept, total = [], 0.0"))
    verdict = n15.check_pipeline_step(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize(
    "line, says",
    [
        ("part.train(was)", "the module of rank 0 was in eval mode while a micro-batch went through"),
        ("torch.set_grad_enabled(False)", "autograd is switched off on rank 0 after the step"),
        ("part.requires_grad_(False)", "a parameter of rank 0 asks for no gradient any more"),
        ("next(part.parameters()).data.mul_(0.9)", "a weight of rank 0 is another one after the step"),
        ("images is None or images.zero_()", "the images are other ones after the step"),
        ("targets is None or targets.zero_()", "the targets are other ones after the step"),
    ],
)
def test_what_a_step_leaves_behind_is_its_gradients_only(line, says):
    begins = ("    kept, total = [], 0.0", "    was = part.training\n    part.eval()\n    kept, total = [], 0.0")
    changes = [begins] if "was" in line else []
    answer = edited(pipeline_step, *changes, ("    return total", f"    {line}\n    return total"))
    verdict = n15.check_pipeline_step(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize(
    "changes",
    [
        (("images.chunk(m)[i]", "images[2 * i : 2 * i + 2]"), ("targets.chunk(m)[i]", "targets[2 * i : 2 * i + 2]")),
        (("range(m)", "range(min(m, 4))"),),
        (("/ m\n", "/ (m if m != 2 else 1)\n"),),
    ],
)
def test_who_knows_the_first_jobs_only_is_seen_in_the_others(changes):
    assert n15.check_pipeline_step(edited(pipeline_step, *changes)).status == "wrong"


@pytest.mark.parametrize(
    "check, answer, old, new",
    [
        (n15.check_pipeline_step, pipeline_step, "y = part(x)", "y = part(x.requires_grad_())"),
        (n15.check_pipeline_step, pipeline_step, "images.chunk", "images.double().chunk"),
        (n15.check_follow, follow, "requires_grad_(before is not None)", "requires_grad_()"),
    ],
)
def test_images_may_be_whole_numbers(check, answer, old, new):
    verdict = check(edited(answer, (old, new)))
    assert verdict.status == "wrong"
    assert "images of whole numbers: " in verdict.message


# ---- exercise 2


@pytest.mark.parametrize("most", [2, 3, 5, 8, 12, 18])
def test_who_lets_so_many_sends_be_under_way_and_no_more_is_stuck_where_ranks_are_far_apart(most):
    loop = "    for op, i in actions:\n"
    window = f"        while len(begun) > {most}:\n            begun.pop(0).wait()\n"
    verdict = n15.check_follow(edited(follow, (loop, loop + window)))
    assert verdict.status == "wrong"
    assert "GPipe before one by one" in verdict.message
    assert "A rank that waits for its send receives nothing meanwhile." in verdict.message


def test_who_waits_for_all_that_has_begun_before_the_next_message_is_stuck_on_three_ranks():
    begun = "begun.append(dist.isend(y.detach(), behind))"
    waits = f"for handle in begun:\n                    handle.wait()\n                {begun}"
    verdict = n15.check_follow(edited(follow, (begun, waits)))
    assert verdict.status == "wrong"
    assert "GPipe before one by one on 3 ranks" in verdict.message


def test_handles_that_are_kept_between_calls_are_told_as_such_and_at_once():
    keeps = edited(
        follow,
        ("shape, dist)", "shape, dist, begun=[])"),
        (
            "kept, begun, total = {}, [], 0.0",
            "kept, total = {}, 0.0\n    for handle in begun:\n        handle.wait()\n    begun.clear()",
        ),
        ("    for handle in begun:\n        handle.wait()\n    return", "    return"),
    )
    verdict = n15.check_follow(keeps)
    assert verdict.status == "wrong"
    assert "KeyError" not in verdict.message
    assert any(
        says in verdict.message for says in ("begun by another rank", "never waited for", "begun in another step")
    )


def test_the_list_of_actions_is_the_callers():
    verdict = n15.check_follow(
        edited(follow, ("for op, i in actions:", "while actions:\n        op, i = actions.pop(0)"))
    )
    assert verdict.status == "wrong"
    assert verdict.message.endswith("the actions are other ones after the step: they are the caller's.")


def begins_to_receive(actions, part, images, targets, m, before, behind, shape, dist):
    """Begin to receive a gradient before sending what it belongs to: then a blocking send finds somebody."""
    kept = {}
    total = 0.0
    coming = []
    for op, i in actions:
        if op == "F":
            x = torch.empty(shape, dtype=torch.float64) if before is not None else images.chunk(m)[i]
            if before is not None:
                dist.recv(x, before)
                x.requires_grad_()
            y = part(x)
            if behind is None:
                y = F.cross_entropy(y, targets.chunk(m)[i]) / m
                total += y.item()
            else:
                gradient = torch.empty_like(y)
                coming.append((gradient, dist.irecv(gradient, behind)))
                dist.send(y.detach(), behind)
            kept[i] = x, y
        else:
            x, y = kept.pop(i)
            if behind is None:
                y.backward()
            else:
                gradient, handle = coming.pop(0)
                handle.wait()
                y.backward(gradient)
            if before is not None:
                dist.send(x.grad, before)
    return total if behind is None else None


def test_who_waits_for_a_send_only_when_its_gradient_comes_is_right_and_so_is_one_who_receives_early():
    waits_later = edited(
        follow,
        ("begun, total = {}, [], 0.0", "begun, total = {}, {}, 0.0"),
        ("begun.append(dist.isend(y.detach(), behind))", 'begun["F", i] = dist.isend(y.detach(), behind)'),
        ("begun.append(dist.isend(x.grad, before))", 'begun["B", i] = dist.isend(x.grad, before)'),
        (
            "            y.backward(gradient)",
            '                begun.pop(("F", i)).wait()\n            y.backward(gradient)',
        ),
        ("for handle in begun:", "for handle in begun.values():"),
    )
    assert n15.check_follow(waits_later)
    assert n15.check_follow(begins_to_receive)


@pytest.mark.parametrize("begins", ["y.detach(), behind", "x.grad, before"])
def test_one_way_may_be_blocking(begins):
    begun = f"begun.append(dist.isend({begins}))"
    assert n15.check_follow(edited(follow, (begun, f"dist.send({begins})")))


def test_who_receives_early_must_not_take_the_first_gradient_for_that_of_the_first_forward():
    by_number = edited(
        begins_to_receive,
        ("coming = []", "coming = {}"),
        (
            "coming.append((gradient, dist.irecv(gradient, behind)))",
            "coming[i] = gradient, dist.irecv(gradient, behind)",
        ),
        ("coming.pop(0)", "coming.pop(i)"),
    )
    verdict = n15.check_follow(by_number)
    assert verdict.status == "wrong"
    assert "random order" in verdict.message


def test_a_drawn_order_goes_forward_in_turn_and_back_as_the_others_do():
    for ranks, micro_batches, seed in ((2, 3, 0), (4, 6, 1), (3, 1, 2)):
        table = drawn_order(ranks, micro_batches, seed)
        assert {tuple(i for op, i in row if op == "F") for row in table} == {tuple(range(micro_batches))}
        back = {tuple(i for op, i in row if op == "B") for row in table}
        assert len(back) == 1
        assert sorted(back.pop()) == list(range(micro_batches))
        assert all(row.index(("F", i)) < row.index(("B", i)) for row in table for i in range(micro_batches))
    assert len({str(drawn_order(3, 5, seed)) for seed in range(20)}) > 15


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("for handle in begun:", "for handle in begun[:1]:", "is never waited for"),
        ("begun.append(dist.isend(y.detach(), behind))", "dist.isend(y.detach(), behind)", "before the step ends."),
        ("dist.isend(y.detach()", "dist.isend(y.detach().float()", "bytes arrive"),
        ("kept[i] = x, y", "kept[0] = x, y", "KeyError: 1"),
        ("/ m\n", "/ 4\n", "is 1.25 times that of one process"),
    ],
)
def test_other_wrong_orders_are_told_what_is_seen(old, new, says):
    verdict = n15.check_follow(edited(follow, (old, new)))
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    "changes",
    [
        [("kept.append((x, y))", "kept.append(y)"), ("for x, y in kept", "for y in kept")],  # the last x is left behind
        [("x.requires_grad_()", "x = x.requires_grad_().clone()")],
        [("send(x.grad", "send(y.grad")],
        [("            y.backward()\n", "            y = y.detach()\n")],  # it sends before it goes back
    ],
)
def test_who_has_asked_for_a_gradient_and_has_none_to_send_is_told_whence_it_comes(changes):
    verdict = n15.check_pipeline_step(edited(pipeline_step, *changes))
    assert verdict.status == "wrong"
    assert "must ask autograd" not in verdict.message
    assert "What is sent is None: x gets a gradient in y's backward" in verdict.message


@pytest.mark.parametrize("to", ["before", "behind"])
def test_who_sends_to_nobody_is_told_that_the_ends_have_none(to):
    everybody = edited(
        pipeline_step,
        ("        if before is not None:\n            dist.send(x.grad, before)", f"        dist.send(x.grad, {to})"),
    )
    verdict = n15.check_pipeline_step(everybody)
    assert "None is no rank: the first stage has none before it, the last one none behind it." in verdict.message


def test_what_is_praised_names_all_that_was_tried():
    assert "on 2 to 4 ranks" in n15.check_pipeline_step(pipeline_step).message


def test_who_keeps_something_between_calls_in_a_default_is_told_that():
    answer = edited(pipeline_step, ("dist):", "dist, kept=[]):"), ("kept, total = [], 0.0", "total = 0.0"))
    verdict = n15.check_pipeline_step(answer)
    assert verdict.status == "wrong"
    assert "The default `kept` is not what it was before the call" in verdict.message
    assert "has no loss" not in verdict.message
    assert "nothing to begin with" not in verdict.message


def test_a_loss_that_has_lost_digits_is_told_with_all_of_them_and_one_that_has_none_is_told():
    verdict = n15.check_pipeline_step(edited(pipeline_step, ("return total", "return torch.tensor(total).item()")))
    assert verdict.status == "wrong"
    got, loss = verdict.message.split("the last rank returned ")[1].split("; the batch's loss is ")
    assert not got.startswith(loss.rstrip("."))
    verdict = n15.check_pipeline_step(edited(pipeline_step, ("return total", "return 0 * float('inf')")))
    assert "the last rank returned nan; the batch's loss is" in verdict.message


@pytest.mark.parametrize("tensor, source", [("x", "before"), ("gradient", "behind")])
@pytest.mark.parametrize("late", ["dist.irecv({})", "begun.append(dist.irecv({}))"])
def test_who_uses_a_tensor_before_its_message_is_there_is_told_so(tensor, source, late):
    asked = f"{tensor}, {source}"
    verdict = n15.check_follow(edited(follow, (f"dist.recv({asked})", late.format(asked))))
    assert verdict.status == "wrong"
    assert "With recv in place of irecv it is right" in verdict.message, verdict
    other = n15.check_follow(edited(follow, (f"dist.recv({asked})", f"dist.irecv({asked}).wait()"), (" / m\n", "\n")))
    assert "in place of irecv" not in other.message
