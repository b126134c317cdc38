"""What is particular about the checks of notebook 04; what all exercises have in common is in test_detectors."""

import json
import pathlib

import numpy as np
import pytest
import torch

from lib.data.permutation import Permutation
from lib.data.samplers import DistributedSampler
from support.kit.mistakes import edited, with_methods
from support.n04 import checks as n04
from support.n04 import cursor as n04_cursor
from support.n04 import walking
from support.n04.cursor import lived
from support.n04.network import round_keys
from support.n04.solved import Cursor, inverse, my_batches, resume, std_shuffle, walk
from support.n04.walking import Counted, fit_for_a_million, line_of, scrambled

GOLDENS = json.loads((pathlib.Path(__file__).parents[2] / "goldens" / "libtorch.json").read_text())


# ---- exercise 1: other right cuts, and answers that are nearly right


def cut_by_arrays(size, world_size, rank, batch_size):
    """Cut each global batch with numpy; its first ranks get the longer pieces."""
    together = np.split(np.arange(size), range(world_size * batch_size, size, world_size * batch_size))
    return [np.array_split(step, world_size)[rank] for step in together]


def cut_in_turns(size, world_size, rank, batch_size):
    """Let the ranks change places from step to step, as tensors: whose piece it is does not matter."""
    for step, places in enumerate(torch.arange(size).split(world_size * batch_size)):
        yield torch.tensor_split(places, world_size)[(rank + step) % world_size]


def cut_position_by_position(size, world_size, rank, batch_size):
    """Ask for each position whose it is; the last step is dealt by stride."""
    together = world_size * batch_size
    whole = size // together
    batches = [[] for _ in range(-(-size // together))]
    for place in range(size):
        step, within = divmod(place, together)
        owner = within // batch_size if step < whole else within % world_size
        if owner == rank:
            batches[step].append(place)
    return tuple(map(tuple, batches))


@pytest.mark.parametrize("answer", [cut_by_arrays, cut_in_turns, cut_position_by_position])
def test_every_cut_that_holds_what_must_hold_is_right(answer):
    assert n04.check_batches(answer), n04.check_batches(answer)


def test_a_cut_with_shorter_blocks_is_told_its_pages_and_one_without_empty_lists_its_steps():
    def halves(size, world_size, rank, batch_size):
        half = max(1, batch_size // 2)
        first = my_batches(size, world_size, rank, batch_size)
        if batch_size % 2 or size % (world_size * batch_size):
            return first if size < 1797 else cut_in_blocks_of(half, size, world_size, rank, batch_size)
        return cut_in_blocks_of(half, size, world_size, rank, batch_size)

    assert "read 117 pages" in n04.check_batches(halves).message
    bare = edited(
        my_batches, ("mine.append(list(range(first, end)))", "mine += [list(range(first, end))] * (end > first)")
    )
    assert "steps" in n04.check_batches(bare).message


def cut_in_blocks_of(block, size, world_size, rank, batch_size):
    """Deal whole steps in blocks, the last step evenly."""
    together = world_size * batch_size
    batches = my_batches(size, world_size, rank, batch_size)
    for step in range(size // together):
        places = range(step * together, (step + 1) * together)
        batches[step] = [place for place in places if place // block % world_size == rank]
    return batches


# ---- exercise 2


def test_the_reference_cursor_deals_what_libtorch_dealt_wherever_there_is_no_more_padding_than_data():
    compared = 0
    for question, shards in GOLDENS["deals"].items():
        kind, size, world_size, duplicates, epoch = question.split()
        fits = int(size) > 0 and -int(size) % int(world_size) <= int(size)
        if kind == "random" and duplicates == "1" and fits and isinstance(shards, list):
            for rank, shard in enumerate(shards):
                mine = Cursor(int(size), int(world_size), rank)
                mine.epoch = int(epoch)
                mine.reset()
                assert (mine.next(int(size)) or []) == shard, question
                compared += 1
    assert compared > 300


class OtherCursor:
    """Right in another way: subtracts where it wraps, keeps the whole order, saves a text, loads without a reset."""

    def __init__(self, size, num_replicas, rank):
        self.size = size
        self.length = (size + num_replicas - 1) // num_replicas
        self.places = range(rank * self.length, (rank + 1) * self.length)
        self.total = self.length * num_replicas
        self.epoch = 0
        self.reset()

    def _made_for(self, epoch):
        self.made = epoch
        padded = [p if p < self.size else p - self.size for p in range(self.total)]
        self.order = std_shuffle(padded, epoch)

    def reset(self):
        self._made_for(self.epoch)
        self.position = self.places.start

    def next(self, batch_size):
        if self.position == self.places.stop:
            return None
        begin = self.position
        self.position = min(begin + batch_size, self.places.stop)
        return self.order[begin : self.position]

    def save(self):
        return f"{self.made} {self.epoch} {self.position}"

    def load(self, state):
        made, self.epoch, self.position = map(int, state.split())
        self._made_for(made)


def test_a_cursor_that_subtracts_keeps_the_order_and_saves_a_text_is_right():
    assert n04.check_cursor(OtherCursor), n04.check_cursor(OtherCursor)


def test_libtorchs_own_state_is_told_its_fault():
    as_libtorch = edited(
        Cursor,
        ("return self.epoch_of_shard, self.epoch, self.position", "return self.epoch, self.position"),
        ("self.epoch, epoch, position = state", "self.epoch, position = state"),
        ("self.epoch, self.position = epoch, position", "self.position = position"),
    )
    walk_of_libtorch = GOLDENS["walks"]["random 10 1 0 1 E3 n3 s i e n9"]
    got = lived(as_libtorch, 10, 1, 0, "epoch=3 next(3) save load next(9)")
    assert ",".join(map(str, got[-1])) == walk_of_libtorch[-1]
    verdict = n04.check_cursor(as_libtorch)
    assert verdict.status == "wrong"
    assert "until then the order is still the old one" in verdict.message


def noted_at_reset(cursor):
    """Write the epoch of the order into the list that was there before."""
    Cursor.reset(cursor)
    vars(cursor).setdefault("noted", [0])[0] = cursor.epoch_of_shard


def waiting_in_one_list():
    """Keep the epoch that is set in a list, the same one from the first epoch on."""

    def set_epoch(self, epoch):
        vars(self).setdefault("set", [0])[0] = epoch

    return property(lambda self: self.set[0], set_epoch)


LISTS_OF_ITS_OWN = {
    "the saved list is that of each reset": (
        {
            "reset": noted_at_reset,
            "save": lambda self: (self.noted, self.epoch, self.position),
            "load": lambda self, state: Cursor.load(self, (*state[0], *state[1:])),
        },
        "A state stays what it was when it was saved",
    ),
    "the saved list is that of each epoch that is set": (
        {
            "epoch": waiting_in_one_list(),
            "save": lambda self: (self.epoch_of_shard, self.set, self.position),
            "load": lambda self, state: Cursor.load(self, (state[0], *state[1], state[2])),
        },
        "A state stays what it was when it was saved",
    ),
    "the loaded list is that of each reset": (
        {
            "reset": noted_at_reset,
            "save": lambda self: (list(self.noted), self.epoch, self.position),
            "load": lambda self, state: (
                Cursor.load(self, (*state[0], *state[1:])),
                vars(self).update(noted=state[0]),
            ),
        },
        "load is to leave the state as it is",
    ),
}


@pytest.mark.parametrize("kept", LISTS_OF_ITS_OWN)
def test_a_new_epoch_changes_no_state_that_was_saved_or_loaded_before(kept):
    methods, said = LISTS_OF_ITS_OWN[kept]
    message = n04.check_cursor(with_methods(Cursor, **methods)).message
    assert said in message, message


@pytest.mark.costly
def test_a_tuple_from_next_and_a_state_with_the_list_in_it_are_refused():
    message = n04.check_cursor(edited(Cursor, ("return batch or None", "return tuple(batch) or None"))).message
    assert "next hands out a list" in message
    listed = edited(
        Cursor,
        (
            "return self.epoch_of_shard, self.epoch, self.position",
            "return self.shard, self.epoch_of_shard, self.epoch, self.position",
        ),
        ("= state", "= state[1:]"),
    )
    assert "must not grow with the data" in n04.check_cursor(listed).message


@pytest.mark.parametrize(
    "where",
    [lambda self: self.epoch != self.epoch_of_shard, lambda self: self.position == self.begin],
    ids=["while an epoch waits", "at the start of the shard"],
)
def test_a_state_stays_small_wherever_the_cursor_stands(where, monkeypatch):
    for slow, quick in {"LIVES": [], "CAN_FORK": False, "MANY": 1}.items():
        monkeypatch.setattr(n04_cursor, slow, quick)
    with_the_shard = with_methods(
        Cursor,
        save=lambda self: (Cursor.save(self), self.shard if where(self) else None),
        load=lambda self, state: Cursor.load(self, state[0]),
    )
    assert "must not grow with the data" in n04_cursor.fault_of_cursor(with_the_shard)


def test_a_state_in_which_an_epoch_waits_can_be_loaded_twice_too():
    def save(self):
        shard, epoch, position = Cursor.save(self)
        return {"shard": shard, "position": position} | ({} if epoch == shard else {"waits": epoch})

    def load(self, state):
        Cursor.load(self, (state["shard"], state.pop("waits", state["shard"]), state["position"]))

    message = n04.check_cursor(with_methods(Cursor, save=save, load=load)).message
    assert "load is to leave the state as it is" in message, message


# ---- exercise 3


def test_the_reference_rule_and_the_sampler_agree_at_every_restart_and_a_whole_epoch_comes_once():
    for size, runs in ((36, [(4, 2, 3), (3, 1, 2), (2, 1, 3)]), (25, [(4, 2, 2), (3, 1, 1), (2, 1, 3)])):
        order = list(DistributedSampler(range(size), 1, 0))
        used = []
        for number, (world_size, batch_size, steps) in enumerate(runs):
            dealt = [resume(size, runs[:number], world_size, rank) for rank in range(world_size)]
            consumed = dealt[0][1][0]
            for rank, (epoch, left) in enumerate(dealt):
                sampler = DistributedSampler(range(size), world_size, rank, pad=False)
                sampler.load_state_dict(DistributedSampler(range(size), 1, 0).state_dict(consumed))
                assert epoch == 0
                assert list(sampler) == [order[position] for position in left]
                used += left[: batch_size * steps]
        assert sorted(used) == list(range(size))
        assert resume(size, runs, 5, 1) == (1, list(range(1, size, 5)))


def resume_by_remainder(size, runs, world_size, rank):
    """Give each position to the rank that it would have had from the start of the epoch on."""
    epoch, rest = resume(size, runs, 1, 0)
    return epoch, [place for place in rest if place % world_size == rank]


def resume_with_steps_to_an_end(size, runs, world_size, rank):
    """Jump from epoch to epoch with a division, run by run, and deal the rest backwards over the ranks."""
    epoch = 0
    begun = 0
    for ranks, batch, steps in runs:
        while steps:
            until_end = -(-(size - begun) // (ranks * batch))
            if steps < until_end:
                begun += steps * ranks * batch
                break
            epoch += 1
            begun = 0
            steps -= until_end
    return [epoch, torch.arange(size)[begun:][world_size - 1 - rank :: world_size]]


@pytest.mark.parametrize("answer", [resume_by_remainder, resume_with_steps_to_an_end])
def test_a_rule_may_deal_what_is_left_to_any_rank_of_a_turn(answer):
    assert n04.check_resume(answer), n04.check_resume(answer)


# ---- exercise 4


def test_the_reference_walks_permutations_network_backwards_and_its_first_mistake_walks_it_forwards_beyond_its_table():
    forwards = next(iter(n04.check_inverse.mistakes.values()))
    for n in (1025, 1500, 2048):
        keys = round_keys(n, seed=3, rounds=8)
        places = range(0, n, 7)
        samples = Permutation(n, 3)[np.array(places)].tolist()
        assert [forwards(place, n, keys) for place in places] == samples
        assert [inverse(sample, n, keys) for sample in samples] == list(places)


def test_what_is_said_of_a_way_back_names_its_function():
    assert n04.check_inverse(lambda number, n, keys: None).message.startswith("inverse: for n = ")


@pytest.mark.costly
def test_a_walk_back_that_holds_for_eight_rounds_only_is_not_right():
    backwards = "reversed(list(enumerate(keys)))"
    eight = edited(inverse, (backwards, "[(k, keys[k]) for k in range(7, -1, -1)]"))
    parity = edited(inverse, (backwards, "enumerate(reversed(keys))"), ("k % 2 == 0", "k % 2 == 1"))
    for answer in (eight, parity):
        verdict = n04.check_inverse(answer)
        assert verdict.status == "wrong"
        assert "rounds = 5" in verdict.message


def test_a_walk_that_never_ends_and_a_search_are_ended_and_asked_which_they_are():
    stuck = edited(
        inverse, ("low_bits, high_bits", "first = number\n    low_bits, high_bits"), ("divmod(number", "divmod(first")
    )

    def search(number, n, keys):
        forwards = next(iter(n04.check_inverse.mistakes.values()))
        return next(i for i in range(n) if forwards(i, n, keys) == number)

    for answer in (stuck, search):
        verdict = n04.check_inverse(answer)
        assert verdict.status == "wrong"
        assert "go position by position, or go round" in verdict.message


# ---- exercise 5


def walk_with_a_queue(ids, n, network, block):
    """Fill each call from what waits: unfinished ids first, then new ones."""
    images = np.array(ids)
    waiting = list(range(len(images)))
    while waiting:
        seats = waiting[:block]
        waiting = waiting[block:]
        for seat, image in zip(seats, network(images[seats]).tolist(), strict=True):
            images[seat] = image
            if image >= n:
                waiting.insert(0, seat)
    return images


def test_a_walk_that_refills_its_seats_is_right_in_another_way():
    assert n04.check_walk(walk_with_a_queue), n04.check_walk(walk_with_a_queue)


def test_one_id_a_call_is_told_how_many_calls_are_enough():
    def singly(ids, n, network, block):
        return np.array([walk(ids[k : k + 1], n, network, block)[0] for k in range(len(ids))])

    message = n04.check_walk(singly).message
    assert "the network was called 64 times; 6 calls would do" in message


def test_a_walk_that_goes_round_for_ever_is_ended():
    stuck = edited(
        walk, ("images[places] = network(images[places])", "network(ids[places])"), ("ids.copy()", "ids + n")
    )
    assert "never come home" in n04.check_walk(stuck).message


def test_a_walk_that_is_slow_on_many_ids_is_measured_with_ours_and_told_so(monkeypatch, capsys):
    monkeypatch.setattr(walking, "TRIED", 600)
    monkeypatch.setattr(walking, "PATIENCE", float("inf"))
    assert fit_for_a_million(walk_with_a_queue, walk) is walk_with_a_queue
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(walking, "PATIENCE", -1.0)
    monkeypatch.setattr(walking, "TRIED", 140_000)
    assert fit_for_a_million(walk_with_a_queue, walk) is walk
    said = capsys.readouterr().out
    assert "measured with ours" in said
    assert "for 2,187 ids" in said


def test_a_counted_network_notes_its_calls_and_takes_whole_numbers_only():
    counted = Counted(scrambled(4))
    counted(np.arange(3))
    counted(np.array([5]))
    assert counted.sizes == [3, 1]
    assert len(counted.seconds) == 2
    for given in (np.array([0.5]), np.array([]), [5], torch.tensor([5])):
        with pytest.raises(Exception, match="one-dimensional array of whole numbers"):
            counted(given)


def test_a_line_is_read_off_small_and_large_calls_and_needs_both():
    counted = Counted(scrambled(4))
    counted.sizes = [2000, 2000, 500, 60, 10, 20]
    counted.seconds = [9 + 2 * size for size in counted.sizes]
    counted.seconds[1] = 5000  # somebody else's time
    counted.seconds[0] = 4009
    counted.sizes.append(2000)
    counted.seconds.append(4009)
    a, b = line_of(counted)
    assert abs(b - 2) < 0.02
    assert abs(a - 9) < 25
    for sizes in ([], [5, 6], [500, 600]):
        counted.sizes = sizes
        with pytest.raises(ValueError, match="needs calls"):
            line_of(counted)


# ---- predictions


def test_the_famous_wrong_guesses_are_told_where_they_come_from_and_a_near_one_is_close():
    assert "that is it" in n04.guess_page_reads("229 pages").message
    assert "only the last page" in n04.guess_page_reads(232).message
    assert "middle of blocks" in n04.guess_block(32).message
    assert "the loader asks ahead" in n04.guess_ahead(4).message  # no worker ever asks the sampler
    assert "one cache that holds the file" in n04.guess_page_reads(29).message  # one of a page gives 225 by stride
    assert "8 pieces at the first save" in n04.guess_block(225).message  # the last one ends the epoch
    assert "close" in n04.guess_longer(3.0, 3.6).message
    assert "that is it" in n04.guess_longer(3.3, 3.3).message
    assert "(ten per cent more numbers, 1.82 times as many passes each)" in n04.guess_longer(2, 2.7).message
    assert "(ten per cent more numbers; their walks are longer, too)" in n04.guess_longer("1.1", 2.7).message
