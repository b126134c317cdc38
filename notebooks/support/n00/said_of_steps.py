"""What is said of the step of all ranks and of the step of one rank alike, in exercises 1 and 4 of notebook 00."""

from __future__ import annotations

STALE = "You stepped by the learning rate of an earlier call: it is an argument, and every call may bring another."
KEPT_RATE = "weight.__dict__.setdefault('rate', learning_rate)"
ONE_BEHIND = "You stepped by the learning rate of an earlier call, the last one: every call brings its own."
RATE_BEHIND = "[weight.__dict__.get('rate', learning_rate), weight.__dict__.update(rate=learning_rate)][0]"
NOT_MOVED = (
    "No weight has moved: change them in place, as `weight -= …` does, while the gradients are still there."
)
RANK_0_ALONE = "All ranks stand where rank 0's gradient alone leads: what the others have found out is lost."
TOO_SHORT = "Times the number of ranks your step would be right: the mean divides by that number once."
TIMES_ROWS = (
    "A rank's gradient came in times its rows, as that of a sum of losses is: a rank's loss is a mean."
)
STEP_PRAISE = "the same weights on every rank as torch on the whole batch, in all {count} cases"
