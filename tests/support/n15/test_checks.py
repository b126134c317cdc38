"""What is particular about the checks of notebook 15; what all exercises have in common is in test_detectors."""

import torch
from torch.nn import functional as F

from support.kit.source import source_of
from support.n15 import checks as n15
from support.n15.solved import pipeline_step


def test_a_pipeline_that_goes_on_as_soon_as_it_can_is_right_too():
    def last_first(part, images, targets, m, before, behind, shape, dist):
        text = source_of(pipeline_step).replace("in kept:", "in kept[::-1]:")
        space = {"torch": torch, "F": F}
        exec(text, space)
        return space["pipeline_step"](part, images, targets, m, before, behind, shape, dist)

    assert n15.check_pipeline_step(last_first)  # torchgpipe goes back from the last micro-batch, too


def test_a_fault_names_rank_and_size():
    def forgets(part, images, targets, m, before, behind, shape, dist):
        return 0.0

    verdict = n15.check_pipeline_step(forgets)
    assert "2 ranks, 4 micro-batches: 4 parameters of rank 0 have no gradient" in verdict.message
    verdict = n15.check_average(lambda parameters, replicas, group, dist: list(parameters))
    assert "gradient 0 of replica 0 is still this replica's own, after 0 all-reduces" in verdict.message
