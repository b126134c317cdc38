"""Rules about operators: for which of them the host has to know a result, and so waits."""

from __future__ import annotations

import torch

from tests.lib.simulated.rules.table import NONZERO, SEMANTICS, TUNING, Device, full, rule


@rule("item() waits: the host is given a number.", TUNING, True)
def item_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    x.sum().item()
    return d.current().query()


@rule("So does float(x), as every number that Python makes of a tensor.", TUNING, True)
def float_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    float(x[0])
    return d.current().query()


@rule("So does an `if` that asks a tensor.", TUNING, True)
def an_if_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    if x.sum() > 0:
        pass
    return d.current().query()


@rule("So does tolist().", TUNING, True)
def tolist_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    x[:3].tolist()
    return d.current().query()


@rule("So does print.", TUNING, True)
def print_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    repr(x[:3])
    return d.current().query()


@rule("So does cpu().", TUNING, True)
def cpu_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    x.cpu()
    return d.current().query()


@rule("So does torch.equal.", TUNING, True)
def equal_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    torch.equal(x, x * 1)
    return d.current().query()


@rule("nonzero waits: how many there are is the size of its result.", NONZERO, True)
def nonzero_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    x.nonzero()
    return d.current().query()


@rule("So does a mask as index,", NONZERO, True)
def a_mask_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    x[x > 0]
    return d.current().query()


@rule("masked_select,", NONZERO, True)
def masked_select_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    x.masked_select(x > 0)
    return d.current().query()


@rule("and unique.", NONZERO, True)
def unique_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    x.unique()
    return d.current().query()


@rule("A number written by a mask does not wait: nothing is counted.", NONZERO, False)
def writing_by_a_mask_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    x[x > 0] = 2.0
    return d.current().query()


@rule("Nor does an index of integers on the device.", NONZERO, False)
def an_index_waits(d: Device) -> bool:
    x = full(d, 1.0)
    places = torch.zeros(3, dtype=torch.int64, device=d.place())
    d.busy()
    x[places]
    return d.current().query()


@rule("Nor does a reduction: its result stays on the device.", SEMANTICS, False)
def a_reduction_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    x.sum().add_(1)
    return d.current().query()


@rule("Nor does a matrix product.", SEMANTICS, False)
def a_product_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    x.reshape(20, 50) @ x.reshape(50, 20)
    return d.current().query()


@rule("Nor do shape, device and dtype, which the host knows.", SEMANTICS, False)
def a_shape_waits(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    (x + 1).shape, x.device, x.dtype
    return d.current().query()


@rule("A tensor that is made of Python's numbers is a copy of pageable memory.", SEMANTICS, True)
def a_tensor_of_numbers_waits(d: Device) -> bool:
    d.busy()
    torch.tensor([1.0, 2.0], device=d.place())
    return d.current().query()


@rule("One that is filled by the device is not.", SEMANTICS, False)
def a_tensor_of_zeros_waits(d: Device) -> bool:
    d.busy()
    torch.zeros(3, device=d.place())
    return d.current().query()


@rule("item() waits for the current stream only.", SEMANTICS, False)
def item_waits_for_another_stream(d: Device) -> bool:
    x = full(d, 1.0)
    side = d.stream()
    with d.on(side):
        d.busy()
    x[0].item()
    return side.query()


@rule("A backward launches, and waits for nothing.", SEMANTICS, False)
def backward_waits(d: Device) -> bool:
    x = full(d, 1.0).requires_grad_()
    d.busy()
    (x * 2).sum().backward()
    return d.current().query()
