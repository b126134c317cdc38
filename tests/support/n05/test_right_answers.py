"""Right answers to the exercises of notebook 05 that are built otherwise than the solution: all are accepted."""

import array
import copy
import gc
import http.client
import json
import mmap
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader, Subset

from support.n05 import checks


class Packed:
    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, i):
        return bytes(self.data[self.offsets[i] : self.offsets[i + 1]]).decode()


class PackedIntoBytes(Packed):
    def __init__(self, rows):
        encoded = [row.encode() for row in rows]
        self.offsets = np.cumsum([0, *map(len, encoded)])
        data = bytearray(int(self.offsets[-1]))
        for begin, row in zip(self.offsets, encoded, strict=False):
            data[begin : begin + len(row)] = row
        self.data = np.frombuffer(data, np.uint8)


class PackedFromTheEnd(Packed):
    def __init__(self, rows):
        encoded = [row.encode() for row in rows]
        self.data = np.frombuffer(b"".join(encoded), np.uint8)
        self.offsets = len(self.data) - np.cumsum([0, *map(len, encoded[::-1])])[::-1]


class PackedAsItGrows(Packed):
    def __init__(self, rows):
        data = bytearray()
        offsets = array.array("q", [0])
        for row in rows:
            data += row.encode()
            offsets.append(len(data))
        self.data = np.frombuffer(bytes(data), np.uint8)
        self.offsets = np.array(offsets)


class PackedFromOneString(Packed):
    def __init__(self, rows):
        self.data = np.frombuffer("".join(rows).encode(), np.uint8)
        self.offsets = np.zeros(len(rows) + 1, np.int64)
        for number, row in enumerate(rows):
            self.offsets[number + 1] = self.offsets[number] + len(row.encode())


class PackedIntoItsPlace(Packed):
    def __init__(self, rows):
        encoded = [bytes(row, "utf-8") for row in rows]
        self.offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=self.offsets[1:])
        self.data = np.empty(self.offsets[-1], np.uint8)
        for number, row in enumerate(encoded):
            self.data[self.offsets[number] : self.offsets[number + 1]] = np.frombuffer(row, np.uint8)


class PackedByPairs(Packed):
    """Makes many tuples on the way; Python keeps some of those that are gone for later use, and they are no rows."""

    def __init__(self, rows):
        pairs = [(row.encode(), len(row.encode())) for row in rows]
        self.data = np.frombuffer(b"".join(text for text, _ in pairs), np.uint8)
        self.offsets = np.cumsum([0, *(size for _, size in pairs)])


def newlines(text):
    return np.flatnonzero(np.frombuffer(text, np.uint8) == 10)


def index_by_find(path, block=1 << 20):
    bounds = array.array("q")
    place = 0
    file = os.open(path, os.O_RDONLY)
    try:
        while text := os.read(file, block):
            at = text.find(b"\n")
            while at >= 0:
                bounds.append(place + at + 1)
                at = text.find(b"\n", at + 1)
            place += len(text)
    finally:
        os.close(file)
    return np.array(bounds)


def index_by_places(path, block=1 << 20):
    file = os.open(path, os.O_RDONLY)
    parts = []
    for place in range(0, os.fstat(file).st_size, block):
        text = os.pread(file, block, place)
        parts.append(place + 1 + newlines(text))
    os.close(file)
    return np.concatenate(parts).astype(np.int64)  # a copy more


def index_by_generator(path, block=1 << 20):
    def pieces():
        place = 0
        with Path(path).open("rb") as file:
            for text in iter(partial(file.read, block), b""):
                yield newlines(text) + (place + 1)
                place += len(text)

    return np.concatenate([*pieces()])


def index_by_map(path, block=1 << 20):
    """Map a window of a block at a time, from the page in which it begins."""
    size = os.path.getsize(path)
    found = []
    with open(path, "rb") as file:
        for first in range(0, size, block):
            before = first % mmap.ALLOCATIONGRANULARITY
            length = min(block, size - first)
            with mmap.mmap(file.fileno(), before + length, access=mmap.ACCESS_READ, offset=first - before) as text:
                found.append(first + 1 + newlines(text[before:]))
    return np.concatenate(found)


def index_into_a_buffer(path, block=1 << 20):
    buffer = bytearray(block)
    found = []
    place = 0
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            found.append(place + 1 + newlines(memoryview(buffer)[:count]))
            place += count
    return np.concatenate(found)


def index_into_new_buffers(path, block=1 << 20):
    found = []
    place = 0
    with open(path, "rb") as file:
        while count := file.readinto(buffer := np.empty(block, np.uint8)):
            found.append(place + 1 + np.flatnonzero(buffer[:count] == 10))
            place += count
    return np.concatenate(found)


def index_by_masks(path, block=1 << 20):
    found = []
    place = 0
    with open(path, "rb") as file:
        while text := file.read(block):
            mask = np.zeros(len(text), bool)
            mask[newlines(text)] = True
            found.append(place + 1 + np.flatnonzero(mask))
            place += len(text)
    return np.concatenate(found)


def index_back_from_the_end_of_a_block(path, block=1 << 20):
    found = []
    place = 0
    with open(path, "rb") as file:
        while text := file.read(block):
            place += len(text)
            found.append(place - np.frombuffer(text, np.uint8).size + newlines(text) + 1)
    return np.concatenate(found)


def index_by_tell(path, block=1 << 20):
    bounds = bytearray()
    place = 0
    with open(path, "rb") as file:
        while text := file.read(block):
            bounds += (place + 1 + newlines(text)).astype(np.int64).tobytes()
            place = file.tell()
    return np.frombuffer(bytes(bounds), np.int64)


def index_by_numpy(path, block=1 << 20):
    found = []
    place = 0
    while len(text := np.fromfile(path, np.uint8, count=block, offset=place)):
        found.append(place + 1 + np.flatnonzero(text == 10))
        place += len(text)
    return np.concatenate(found)


def index_by_blocks_a_byte_short(path, block=1 << 20):
    return index_by_generator(path, max(1, block - 1))


def index_that_doubles(path, block=1 << 20):
    bounds = np.empty(16, np.int64)
    count = 0
    place = 0
    with Path(path).open("rb") as file:
        while text := file.read(block):
            new = place + 1 + newlines(text)
            if count + len(new) > len(bounds):
                larger = np.empty(2 * (count + len(new)), np.int64)
                larger[:count] = bounds[:count]
                bounds = larger
            bounds[count : count + len(new)] = new
            count += len(new)
            place += len(text)
    return bounds[:count].copy()


class ByPlaces:
    def __init__(self, path, bounds):
        self.bounds = bounds
        self.file = open(path, "rb")  # noqa: SIM115 – as long as the dataset lives

    def __len__(self):
        return len(self.bounds) - 1

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        rows = [None] * len(indices)
        last = None
        for place in sorted(range(len(indices)), key=lambda place: indices[place]):
            if indices[place] != last:
                last = indices[place]
                begin, end = map(int, self.bounds[last : last + 2])
                row = os.pread(self.file.fileno(), end - begin - 1, begin).decode()
            rows[place] = row
        return rows


class ByPairs(ByPlaces):
    def __getitems__(self, indices):
        rows = {}
        for index, _ in sorted((int(index), place) for place, index in enumerate(indices)):
            if index not in rows:
                begin, end = map(int, self.bounds[index : index + 2])
                rows[index] = os.pread(self.file.fileno(), end - begin - 1, begin).decode()
        return [rows[int(index)] for index in indices]


class IntoBuffers(ByPlaces):
    def __getitems__(self, indices):
        rows = {}
        for index in sorted(set(map(int, indices))):
            buffer = bytearray(int(self.bounds[index + 1] - self.bounds[index]))
            os.preadv(self.file.fileno(), [buffer], int(self.bounds[index]))
            rows[index] = buffer[:-1].decode()
        return [rows[int(index)] for index in indices]


class AtLeastAPage(checks.check_file.reference):
    def __getitem__(self, index):
        begin, end = map(int, self.bounds[index : index + 2])
        return os.pread(self.file, max(4096, end - begin), begin)[: end - begin - 1].decode()


class ItsPage(checks.check_file.reference):
    """Reads the page that holds a row; rows of a batch may have one page."""

    def __getitem__(self, index):
        begin, end = map(int, self.bounds[index : index + 2])
        page = begin // 4096 * 4096
        return os.pread(self.file, max(4096, end - page), page)[begin - page : end - page - 1].decode()


class ByProcess:
    def __init__(self, host, port):
        self.address = (host, port)
        self.connections = {}

    def ask(self, method, path, body=None):
        if os.getpid() not in self.connections:
            self.connections[os.getpid()] = http.client.HTTPConnection(*self.address, timeout=10)
        connection = self.connections[os.getpid()]
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status == 404:
            raise IndexError(text)
        if answer.status != 200:
            raise OSError(answer.status, text)
        return json.loads(text)

    def __len__(self):
        self.size = getattr(self, "size", None) or self.ask("GET", "/len")  # a length is no row
        return self.size

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        unique = sorted(set(indices))
        rows = dict(zip(unique, self.ask("POST", "/rows", json.dumps(unique)), strict=True))
        return [rows[index] for index in indices]


class AtFork(ByProcess):
    def __init__(self, host, port):
        self.address = (host, port)
        self.connect()
        os.register_at_fork(after_in_child=self.connect)

    def connect(self):
        self.connections = {os.getpid(): http.client.HTTPConnection(*self.address, timeout=10)}


class InTheFilesOrder(checks.check_rank_dataset.reference):
    """Packs the rows as they lie in the file, and keeps 8 bytes a row that say which item is where."""

    def load(self, epoch, mini_epoch):
        self.rows = self.at = None
        unique, at = np.unique(self.ids(epoch, mini_epoch), return_inverse=True)
        self.rows = PackedFromOneString(self.source.__getitems__(unique))
        self.at = at

    def __len__(self):
        return len(self.at)

    def __getitem__(self, i):
        return self.rows[self.at[i]]


class ShortPlaces(InTheFilesOrder):
    def load(self, epoch, mini_epoch):
        super().load(epoch, mini_epoch)
        self.at = self.at.astype(np.int32)


def with_a_name(dataset, epoch, **options):
    for mini_epoch in range(dataset.mini_epochs):
        dataset.load(epoch, mini_epoch)
        if not len(dataset):
            continue
        loader = DataLoader(dataset, **options)
        yield from loader


def one_ahead(dataset, epoch, **options):
    for mini_epoch in range(dataset.mini_epochs):
        dataset.load(epoch, mini_epoch)
        batches = iter(DataLoader(dataset, **options) if len(dataset) else [])
        following = next(batches, batches)
        while following is not batches:
            batch = following
            following = next(batches, batches)  # before this one is handed out
            yield batch


def a_copy_without_a_name(dataset, epoch, **options):
    for mini_epoch in range(dataset.mini_epochs):
        dataset.load(epoch, mini_epoch)
        if len(dataset):
            yield from DataLoader(copy.copy(dataset), **options)


def a_part_of_it_with_a_name(dataset, epoch, **options):
    for mini_epoch in range(dataset.mini_epochs):
        dataset.load(epoch, mini_epoch)
        if len(dataset):
            loader = DataLoader(Subset(dataset, range(len(dataset))), **options)
            yield from loader


def says_where(dataset, epoch, **options):
    try:
        yield from with_a_name(dataset, epoch, **options)
    except Exception as error:
        raise RuntimeError(f"in epoch {epoch}") from error


ANSWERS = {
    checks.check_rank_dataset: (InTheFilesOrder, ShortPlaces),
    checks.check_epoch: (
        with_a_name,
        a_copy_without_a_name,
        a_part_of_it_with_a_name,
        one_ahead,
        says_where,
    ),
    checks.check_packed: (
        PackedAsItGrows,
        PackedByPairs,
        PackedFromOneString,
        PackedFromTheEnd,
        PackedIntoBytes,
        PackedIntoItsPlace,
    ),
    checks.check_index: (
        index_by_find,
        index_by_places,
        index_by_generator,
        index_by_map,
        index_into_a_buffer,
        index_into_new_buffers,
        index_by_masks,
        index_back_from_the_end_of_a_block,
        index_by_tell,
        index_by_numpy,
        index_by_blocks_a_byte_short,
        index_that_doubles,
    ),
    checks.check_file: (ByPlaces, ByPairs, IntoBuffers, AtLeastAPage, ItsPage),
    checks.check_client: (ByProcess, AtFork),
}


@pytest.mark.parametrize(
    "check, answer",
    [pytest.param(check, answer, id=answer.__name__) for check, answers in ANSWERS.items() for answer in answers],
)
def test_it_is_accepted(check, answer):
    verdict = check(answer)
    assert verdict, verdict


@pytest.mark.costly
def test_an_answer_that_collects_garbage_goes_through_new_objects_only():
    seen = []

    def counting(dataset, epoch, **options):
        for mini_epoch in range(dataset.mini_epochs):
            seen.append(len(gc.get_objects()))
            dataset.load(epoch, mini_epoch)
            if len(dataset):
                yield from DataLoader(dataset, **options)

    class CountingAtLoad(checks.check_rank_dataset.reference):
        def load(self, epoch, mini_epoch):
            seen.append(len(gc.get_objects()))
            super().load(epoch, mini_epoch)

    for check, answer in ((checks.check_epoch, counting), (checks.check_rank_dataset, CountingAtLoad)):
        seen.clear()
        assert check(answer)
        assert max(seen) < (len(gc.get_objects()) + gc.get_freeze_count()) / 10
