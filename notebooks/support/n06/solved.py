"""Exercise 3 of notebook 06, solved: word for word what its solution has. The others stand in support/built.py."""

# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: D103

from support.built import all_gather, reduce_scatter


def sharded_step(weights, gradient, own, optimizer, dist):
    rank, world = dist.get_rank(), dist.get_world_size()
    reduce_scatter(gradient, dist)
    own.grad = gradient.tensor_split(world)[rank] / world
    optimizer.step()
    weights.tensor_split(world)[rank].copy_(own.detach())
    all_gather(weights, dist)
