"""How long a month of training takes on several devices: rows are shared, messages and updates are not."""

from __future__ import annotations

MONTH = 30.0  # days on one device
BACKWARD = 2 / 3  # of the time that a device computes; forward is the rest

SAME_BATCH = "the same on all devices together"
SAME_SHARE = "the same on each device"
BATCHES = (SAME_BATCH, SAME_SHARE)


def days(
    devices: int, message: float, *, batch: str = SAME_BATCH, hidden: bool = False, update: float = 0.0
) -> float:
    """Return the days that as many rows take as one device trains on in a month.

    message: what exchanging the gradients takes, as a share of one device's whole step, whatever the number of devices.
    batch: what stays as it was on one device, the batch of all devices or that of each. hidden: messages travel during
    backward. update: what the step proper takes, as a share of one device's whole step; every device does all of it.
    Every device is as fast as every other. Raises ValueError for another batch.
    """
    if batch not in BATCHES:
        raise ValueError(f"batch must be one of {', '.join(BATCHES)}, not {batch!r}")
    rows = 1 / devices if batch == SAME_BATCH else 1.0  # of those that one device has in a step
    computing = (1 - update) * rows
    steps = 1.0 if batch == SAME_BATCH else 1 / devices
    travelling = message if devices > 1 else 0.0
    if hidden:
        forward = (1 - BACKWARD) * computing
        step = forward + max(BACKWARD * computing, travelling) + update
    else:
        step = computing + travelling + update
    return MONTH * steps * step
