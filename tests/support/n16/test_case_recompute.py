"""Case 7 of notebook 16: what is computed again, what is kept for it, and what a run without recompute shows."""

import pytest

from support.kit.mistakes import edited
from support.n16 import case_half_the_memory
from support.n16.series import ends_of_trials

#: A graph that forward keeps, and a second run whose result nobody uses.
KEPT = (
    (
        "            ctx.save_for_backward(x)\n            return block(x)\n",
        "            with torch.enable_grad():\n"
        "                ctx.x = x.detach().requires_grad_()\n"
        "                ctx.out = block(ctx.x)\n"
        "            return ctx.out.detach()\n",
    ),
    (
        "            (x,) = ctx.saved_tensors\n            x = x.detach().requires_grad_()\n",
        "            x = ctx.x\n",
    ),
    ("                out = ctx.block(x)\n", "                ctx.block(x)\n            out = ctx.out\n"),
)


def test_without_recompute_the_weights_are_those_of_before():
    again = (
        "        loss = F.mse",
        "        if not recompute:\n            torch.manual_seed(seed)\n        loss = F.mse",
    )
    job = edited(case_half_the_memory.job_7, again)
    message = case_half_the_memory.check_job_7(job, case_half_the_memory.FORECAST_7).message
    assert "without recompute the weights are up to" in message


def test_a_graph_that_is_kept_is_not_computed_again_by_a_run_for_the_look_of_it():
    job = edited(case_half_the_memory.job_7, *KEPT)
    message = case_half_the_memory.check_job_7(job, case_half_the_memory.FORECAST_7).message
    assert "still keeps what it has computed in forward when it runs again" in message


#: Backward takes the masks that forward has kept.
MASKS = (
    (
        "            return block(x)\n",
        "            ctx.masks = []\n"
        "            whole = F.dropout\n\n"
        "            def noted(v, p, training, inplace=False):\n"
        "                ctx.masks.append(whole(torch.ones_like(v), p, training))\n"
        "                return v * ctx.masks[-1]\n\n"
        "            F.dropout = noted\n"
        "            try:\n"
        "                return block(x)\n"
        "            finally:\n"
        "                F.dropout = whole\n",
    ),
    (
        "                out = ctx.block(x)\n",
        "                whole = F.dropout\n"
        "                F.dropout = lambda v, *_: v * ctx.masks.pop(0)\n"
        "                out = ctx.block(x)\n"
        "                F.dropout = whole\n",
    ),
)


def test_masks_that_are_kept_for_backward_are_something_kept():
    job = edited(case_half_the_memory.job_7, *MASKS)
    message = case_half_the_memory.check_job_7(job, case_half_the_memory.FORECAST_7).message
    assert "still keeps what it has computed in forward when it runs again" in message


def test_a_mask_that_serves_two_dropouts_is_wrong_already_in_its_weights():
    job = edited(case_half_the_memory.job_7, *MASKS)
    job = edited(job, ("ctx.masks.pop(0)", "ctx.masks[-1]"))
    given = case_half_the_memory.drawn_7(1, 1, 0.5)
    found = [
        ends_of_trials(each, 1, [{**given, "seed": 1, "steps": 2, "learning_rate": 0.1}])[0][0].value
        for each in (job, case_half_the_memory.job_7)
    ]
    assert not case_half_the_memory._equal(*found)


def test_without_recompute_nothing_is_computed_again():
    job = edited(case_half_the_memory.job_7, (" if recompute else block(x)", ""))
    message = case_half_the_memory.check_job_7(job, case_half_the_memory.FORECAST_7).message
    assert "without recompute a block runs 6 times in 3 steps" in message


ONE_BY_ONE = (
    "        for block in blocks:\n"
    "            x = Recomputed.apply(block, x, *block.parameters()) if recompute else block(x)\n"
)
ROUND_ALL = (
    "        whole = nn.Sequential(*blocks)\n"
    "        x = Recomputed.apply(whole, x, *whole.parameters()) if recompute else whole(x)\n"
)
TORCHS_ROUND_ALL = (
    "        from torch.utils.checkpoint import checkpoint\n\n"
    "        whole = nn.Sequential(*blocks)\n"
    "        x = checkpoint(whole, x, use_reentrant=False) if recompute else whole(x)\n"
)
ROUND_PAIRS = (
    "        for first in range(0, len(blocks), 2):\n"
    "            pair = nn.Sequential(*blocks[first : first + 2])\n"
    "            x = Recomputed.apply(pair, x, *pair.parameters()) if recompute else pair(x)\n"
)


@pytest.mark.parametrize("group", [ROUND_ALL, TORCHS_ROUND_ALL, ROUND_PAIRS])
def test_a_checkpoint_round_several_blocks_holds_them_together(group):
    job = edited(case_half_the_memory.job_7, (ONE_BY_ONE, group))
    message = case_half_the_memory.check_job_7(job, case_half_the_memory.FORECAST_7).message
    assert "with 3 blocks" in message
    assert "a block runs again in backward while another's inside is still kept" in message


@pytest.mark.parametrize("reentrant", [False, True])
def test_torchs_checkpoint_round_each_block_is_right(reentrant):
    torchs = (
        "        from torch.utils.checkpoint import checkpoint\n\n        x.requires_grad_()\n"
        "        for block in blocks:\n"
        f"            x = checkpoint(block, x, use_reentrant={reentrant}) if recompute else block(x)\n"
    )
    job = edited(case_half_the_memory.job_7, (ONE_BY_ONE, torchs))
    verdict = case_half_the_memory.check_job_7(job, case_half_the_memory.FORECAST_7)
    assert verdict, verdict.message


def test_a_block_that_stands_at_two_places_has_a_draw_at_each():
    on_the_block = (
        ("ctx.state = ", "ctx.block.state = "),
        ("set_rng_state(ctx.state)", "set_rng_state(ctx.block.state)"),
    )
    job = edited(case_half_the_memory.job_7, *on_the_block)
    message = case_half_the_memory.check_job_7(job, case_half_the_memory.FORECAST_7).message
    assert "with a block that stands at two places the weights are up to" in message
