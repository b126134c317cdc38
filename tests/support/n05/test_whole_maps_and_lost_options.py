"""Answers of notebook 05 that map a file whole, or whose options reach the first mini-epoch's loader alone."""

import array
import mmap

import numpy as np
import pytest
from torch.utils.data import DataLoader

from support.n05 import checks
from support.n05.trials_epoch import _fault_of_options


def by_find(path, block=1 << 20):
    bounds = array.array("q")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        place = text.find(b"\n")
        while place >= 0:
            bounds.append(place + 1)
            place = text.find(b"\n", place + 1)
    return np.array(bounds, dtype=np.int64)


def by_slices_of_a_map(path, block=1 << 20):
    text = np.memmap(path, np.uint8, "r")
    return np.concatenate([k + 1 + np.flatnonzero(text[k : k + block] == 10) for k in range(0, len(text), block)])


@pytest.mark.parametrize("index", [by_find, by_slices_of_a_map])
def test_a_file_that_is_mapped_whole_is_told(index):
    message = checks.check_index(index).message
    assert "of it at once: map or read `block` bytes at a time." in message


def popping(name, otherwise):
    def deal(dataset, epoch, **options):
        for mini_epoch in range(dataset.mini_epochs):
            dataset.load(epoch, mini_epoch)
            given = {name: options.pop(name, otherwise)}
            if len(dataset):
                yield from DataLoader(dataset, **given, **options)

    return deal


@pytest.mark.parametrize(
    "name, otherwise, says",
    [
        ("shuffle", False, "a mini-epoch's rows come in the order of ids: the option has not reached its loader."),
        ("generator", None, "in another order than the generator gives them"),
    ],
)
def test_an_option_reaches_the_loader_of_every_mini_epoch(name, otherwise, says):
    assert says in _fault_of_options(popping(name, otherwise))
