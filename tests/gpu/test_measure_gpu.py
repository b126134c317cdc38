"""On a GPU: CUDA events time the device's work, not its launch, and the peak is that of the body alone."""

import os

import pytest
import torch

from lib.measure import compare, device_peak, machine_card, measure


def product(size: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.randn(size, size, device="cuda", generator=generator)


def test_events_time_the_work_not_its_launch_and_not_what_was_launched_before() -> None:
    small = product(64)
    large = product(8192)
    timings = compare({"small": lambda: small @ small, "large": lambda: large @ large}, repeats=5, device="cuda")
    assert timings["large"].clock == "cuda events"
    assert timings.ratio("large", "small") > 2, "both launches cost the CPU the same"
    large = product(8192)
    work = measure(lambda: large @ large, device="cuda")
    for _ in range(20):
        large @ large
    nothing = measure(lambda: None, warmup=0, repeats=1, device="cuda")
    assert nothing.median < work.median


def test_the_peak_is_that_of_the_body_also_of_one_that_raises() -> None:
    kept = torch.zeros(1_000_000, device="cuda")  # 4 MB that were there before
    with device_peak("cuda") as peak:
        torch.zeros(25_000_000, device="cuda")  # 100 MB, gone at once
    assert peak.allocated is not None
    assert peak.extra is not None
    assert 100_000_000 <= peak.extra < 110_000_000
    assert peak.allocated >= peak.extra + kept.nbytes

    def fails(elements: int) -> None:
        torch.zeros(elements, device="cuda")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), device_peak() as peak:
        fails(25_000_000)
    assert peak.extra is not None
    assert peak.extra >= 100_000_000


def test_the_card_names_the_gpu() -> None:
    card = machine_card()
    assert card.gpu == card.device == torch.cuda.get_device_name()
    assert card.cuda == torch.version.cuda
    assert f"gpu    {card.gpu}" in str(card)
    assert card.driver is None or card.driver[0].isdigit()
    assert os.sep + "proc" not in str(card)
