"""Wrong answers of notebook 04 that once passed its checks, each with what is said of it now."""

import functools
import inspect
import json
import math
import os
import pathlib
import pickle
import sqlite3
import uuid

import numpy as np
import pytest

from support.kit import apart
from support.kit.mistakes import edited, with_methods
from support.n04 import checks as n04
from support.n04 import cursor as n04_cursor
from support.n04 import network
from support.n04.network import network_cases, round_keys
from support.n04.runs import lag_surprise
from support.n04.solved import Cursor, inverse, my_batches, resume, std_shuffle, walk


def refused(verdict, said):
    """Hold a verdict against the words that must be in it."""
    assert verdict.status == "wrong", verdict
    assert said in verdict.message, verdict.message


# ---- exercise 1


def test_a_last_step_in_which_nobody_takes_anything_is_no_step():
    refused(
        n04.check_batches(edited(my_batches, ("range(0, size, together)", "range(0, size + 1, together)"))),
        "in the last step nobody takes anything",
    )


def test_batches_of_one_are_batches_too():
    refused(
        n04.check_batches(
            edited(my_batches, ("    mine = []\n", "    mine = []\n    rank += batch_size == 1 < size\n"))
        ),
        "batch_size = 1",
    )


# ---- exercise 2


def test_a_state_that_grows_with_every_call_is_refused():
    def next_kept(self, batch_size):
        batch = Cursor.next(self, batch_size)
        self.handed = [*getattr(self, "handed", []), *(batch or [])]
        return batch

    growing = with_methods(
        Cursor,
        next=next_kept,
        save=lambda self: (getattr(self, "handed", []), Cursor.save(self)),
        load=lambda self, state: Cursor.load(self, state[1]),
    )
    refused(n04.check_cursor(growing), "must not grow with the calls")


STORE = []


def in_a_global():
    def save(self):
        STORE.append(dict(vars(self)))
        return len(STORE) - 1

    return save, lambda self, number: vars(self).update(STORE[number])


def in_a_closure():
    kept = {}

    def save(self):
        kept[self.position] = dict(vars(self))
        return self.position

    return save, lambda self, position: vars(self).update(kept[position])


def in_a_default():
    def save(self, kept=[]):  # noqa: B006 that is the mistake
        kept.append(dict(vars(self)))
        return [len(kept) - 1]

    return save, lambda self, state: vars(self).update(save.__defaults__[0][state[0]])


def in_the_environment():
    def save(self):
        os.environ["CURSOR"] = json.dumps(vars(self))
        return "CURSOR"

    return save, lambda self, name: vars(self).update(json.loads(os.environ[name]))


def in_a_file(folder):
    def save(self):
        (folder / "cursor.json").write_text(json.dumps(vars(self)))
        return str(folder / "cursor.json")

    return save, lambda self, path: vars(self).update(json.loads(pathlib.Path(path).read_text()))


def in_a_file_of_each_state(folder):
    def save(self):
        path = folder / f"{uuid.uuid4()}"
        with path.open("wb") as file:
            pickle.dump(vars(self), file)
        return {"path": str(path)}

    def load(self, state):
        with open(state["path"], "r+b") as file:
            vars(self).update(pickle.load(file))

    return save, load


def in_a_database(folder):
    def save(self):
        with sqlite3.connect(folder / "cursors") as base:
            base.execute("create table if not exists kept (text)")
            row = base.execute("insert into kept values (?)", [json.dumps(vars(self))])
        return row.lastrowid

    def load(self, row):
        with sqlite3.connect(folder / "cursors") as base:
            (text,) = base.execute("select text from kept where rowid = ?", [row]).fetchone()
        vars(self).update(json.loads(text))

    return save, load


@pytest.mark.parametrize(
    "store",
    [
        in_a_global,
        in_a_closure,
        in_a_default,
        in_the_environment,
        in_a_file,
        in_a_file_of_each_state,
        in_a_database,
    ],
)
def test_a_state_whose_content_stays_elsewhere_is_refused(store, tmp_path, monkeypatch):
    monkeypatch.setenv("CURSOR", "")
    save, load = store(tmp_path) if inspect.signature(store).parameters else store()
    stored = with_methods(Cursor, save=save, load=load)
    refused(n04.check_cursor(stored), "The new process has the state only")


def dies(*_, **__):
    raise ChildProcessError


@pytest.mark.parametrize("setting", [("CAN_FORK", False), ("in_a_process_of_its_own", dies)])
def test_where_no_process_can_be_copied_the_rest_is_asked_all_the_same(setting, monkeypatch):
    monkeypatch.setattr(n04_cursor, *setting)
    assert n04.check_cursor(Cursor)
    refused(n04.check_cursor(with_methods(Cursor, load=lambda self, state: None)), "save, load, position")


def test_a_cursor_that_writes_a_log_beside_its_state_is_right(tmp_path):
    def next_noted(self, batch_size):
        with (tmp_path / "log").open("a") as log:
            print(batch_size, file=log)
        return Cursor.next(self, batch_size)

    verdict = n04.check_cursor(with_methods(Cursor, next=next_noted))
    assert verdict, verdict


def test_a_shard_that_all_cursors_share_is_refused():
    shared = edited(Cursor, ("self.shard", "type(self).shard"))
    refused(n04.check_cursor(shared), "Two cursors are two")


@pytest.mark.parametrize(
    "change",
    [
        (
            (
                "self.shard = std_shuffle(padded, self.epoch)",
                "self.shard = std_shuffle(padded, vars(self).get('kept', self.epoch))",
            ),
            (
                "        self.reset()\n        self.epoch, ",
                "        self.reset()\n        self.kept = epoch\n        self.epoch, ",
            ),
        ),
        (("self.epoch, self.position = epoch, position", "self.epoch, self.position = epoch or self.epoch, position"),),
        (
            (
                "self.epoch, self.position = epoch, position",
                "self.epoch, self.position = max(self.epoch, epoch), position",
            ),
        ),
    ],
    ids=["epochs set after load are ignored", "a pending epoch 0 is lost", "the larger epoch is kept"],
)
def test_every_epoch_that_is_set_counts_after_a_load(change):
    refused(n04.check_cursor(edited(Cursor, *change)), "reset()")


def test_a_state_that_goes_on_changing_with_its_cursor_is_refused():
    def next_noted(self, batch_size):
        batch = Cursor.next(self, batch_size)
        vars(self).setdefault("noted", {})["state"] = Cursor.save(self)
        return batch

    def save(self):
        vars(self).setdefault("noted", {})["state"] = Cursor.save(self)
        return self.noted

    live = with_methods(Cursor, next=next_noted, save=save, load=lambda self, state: Cursor.load(self, state["state"]))
    refused(n04.check_cursor(live), "A state stays what it was when it was saved")


def made_by_load_itself():
    return with_methods(Cursor, load=load_without_reset)


def load_without_reset(self, state):
    epoch_of_shard, self.epoch, self.position = state
    length = -(-self.size // self.num_replicas)
    padded = [i % self.size for i in range(length * self.num_replicas)]
    self.shard = std_shuffle(padded, epoch_of_shard)[self.begin :][:length]


def the_waiting_epoch_taken_for_the_other():
    def load(self, state):
        Cursor.load(self, state)
        self.epoch_of_shard = self.epoch

    return with_methods(Cursor, load=load)


def changed_by_its_save():
    def save(self):
        state = Cursor.save(self)
        self.epoch_of_shard = self.epoch
        return state

    return with_methods(Cursor, save=save)


def known_by_position_0():
    def load(self, state):
        epoch_of_shard, epoch, position = state
        Cursor.load(self, (epoch_of_shard if position else epoch, epoch, position))

    return with_methods(Cursor, load=load)


def test_save_is_a_call_too_and_a_loaded_cursor_is_asked_for_it():
    loaded_twice = "Cursor(10, 1, 0), epoch=3, {}next(3), save, load, save, load, next(9)"
    refused(n04.check_cursor(made_by_load_itself()), loaded_twice.format("reset(), "))
    refused(n04.check_cursor(made_by_load_itself()), "its own state names another epoch")
    refused(n04.check_cursor(the_waiting_epoch_taken_for_the_other()), loaded_twice.format(""))
    refused(n04.check_cursor(changed_by_its_save()), "save, save, load, next(9)")
    refused(n04.check_cursor(known_by_position_0()), "Cursor(10, 3, 0), epoch=3, save, load, next(4)")


def test_drawn_lives_alone_find_what_a_second_restart_loses():
    drawn = [life for life in n04_cursor.LIVES if life[3].endswith("next(12) position reset() next(12)")]
    for wrong in (
        made_by_load_itself(),
        the_waiting_epoch_taken_for_the_other(),
        changed_by_its_save(),
        known_by_position_0(),
    ):
        assert any(n04_cursor.lived(wrong, *life) != n04_cursor.lived(Cursor, *life) for life in drawn)


@pytest.mark.parametrize("call", ["reset", "save", "load"])
def test_a_state_that_grows_with_resets_saves_or_loads_is_refused(call):
    def noted(self, *given):
        vars(self).setdefault("noted", []).append(self.epoch)
        return getattr(Cursor, call)(self, *given)

    def save(self):
        state = noted(self) if call == "save" else Cursor.save(self)
        return state, list(vars(self).get("noted", []))

    def load(self, state):
        self.noted = list(state[1])
        (noted if call == "load" else Cursor.load)(self, state[0])
        self.noted = list(state[1]) + [0] * (call == "load")

    ways = {"save": save, "load": load} | ({"reset": noted} if call == "reset" else {})
    refused(n04.check_cursor(with_methods(Cursor, **ways)), f"after {n04_cursor.MANY} calls of {call}")


# ---- exercise 3


def by_the_last_run_in_its_epoch(size, runs, world_size, rank):
    epoch = used = 0
    for ranks, batch, steps in runs:
        length = -(-size // (ranks * batch))
        epoch += steps // length
        used = steps % length * ranks * batch
    return epoch, list(range(used + rank, size, world_size))


def test_a_rule_that_counts_all_epochs_is_not_told_that_it_counts_the_last_run_only():
    refused(n04.check_resume(by_the_last_run_in_its_epoch), "The last run is counted as if it began at position 0")


def test_a_rule_that_empties_the_history_is_refused():
    def popping(size, runs, world_size, rank):
        copy = list(runs)
        runs.clear()
        return resume(size, copy, world_size, rank)

    refused(n04.check_resume(popping), "the history that it was given is [] afterwards")


def by_the_period_of_the_last_run(size, runs, world_size, rank):
    used = epoch = 0
    for ranks, batch, steps in runs:
        used += ranks * batch * steps
        if used >= size:
            period = -(-size // (ranks * batch))
            epoch += used // (period * ranks * batch)
            used %= period * ranks * batch
    return epoch, list(range(used + rank, size, world_size))


def by_taking_periods_off(size, runs, world_size, rank):
    used = epoch = 0
    for ranks, batch, steps in runs:
        used += ranks * batch * steps
        period = -(-size // (ranks * batch)) * ranks * batch
        while used >= size:
            epoch += 1
            used = max(0, used - period)
    return epoch, list(range(used + rank, size, world_size))


@pytest.mark.parametrize("rule", [by_the_period_of_the_last_run, by_taking_periods_off])
def test_an_epoch_begun_by_one_run_and_ended_by_another_has_no_period(rule):
    refused(n04.check_resume(rule), "resume(")


def test_fewer_left_than_ranks_are_still_shared_and_given_once():
    def to_the_first(size, runs, world_size, rank):
        epoch, rest = resume(size, runs, 1, 0)
        if len(rest) >= world_size:
            return epoch, rest[rank::world_size]
        return epoch, rest if rank == 0 else []

    def again(size, runs, world_size, rank):
        epoch, mine = resume(size, runs, world_size, rank)
        return epoch, mine or resume(size, runs, 1, 0)[1][:1]

    refused(n04.check_resume(to_the_first), "no two ranks may differ by more than one")
    refused(n04.check_resume(again), "No position may be given twice")


def test_an_end_that_is_looked_for_after_each_run_only_is_told_so():
    late = edited(
        resume,
        (
            "            consumed += ranks * batch_size\n",
            "            consumed = min(consumed + ranks * batch_size, size)\n",
        ),
        ("            if consumed >= size:\n                epoch", "        if consumed >= size:\n            epoch"),
    )
    message = n04.check_resume(late).message
    assert "after the last run only" not in message


# ---- exercise 4


def forwards(number, n, keys):
    return next(iter(n04.check_inverse.mistakes.values()))(number, n, keys)


@functools.cache
def table_of(n, keys):
    return {forwards(position, n, keys): position for position in range(n)}


def test_a_stored_order_is_no_way_back():
    refused(n04.check_inverse(lambda number, n, keys: table_of(n, tuple(keys))[number]), "position by position")


def test_a_stored_order_made_with_arrays_is_no_way_back_either():
    def by_array(number, n, keys):
        low_bits = -(-(n - 1).bit_length() // 2)
        places = np.arange(n)
        for factor, key in keys:
            places = places ^ (places * factor + key) % 2**low_bits
        return int(places[0])

    refused(n04.check_inverse(by_array), "position by position")


def test_keys_kept_from_an_earlier_check_are_of_no_use():
    copied = {}

    def remembering(number, n, keys):
        return inverse(number, n, copied.setdefault((n, len(keys)), list(keys)))

    assert remembering(5, 3000, round_keys(3000, seed=2, rounds=8)) < 3000
    for n, seed, rounds in ((case["n"], case["seed"], case.get("rounds", 8)) for case in network_cases()):
        copied[n, rounds] = [(int(factor), key) for factor, key in round_keys(n, seed, rounds)]
    printed = dict(copied)  # all that a check has shown

    def from_the_table(number, n, keys):
        return inverse(number, n, printed.get((n, len(keys)), printed[3000, 8]))

    refused(n04.check_inverse(from_the_table), "stands at position")


def test_positions_kept_from_an_earlier_check_are_of_no_use():
    positions = {}

    def noting(number, n, keys):
        positions[number, n, tuple(keys)] = inverse(number, n, keys)
        return positions[number, n, tuple(keys)]

    assert n04.check_inverse(noting)
    refused(n04.check_inverse(lambda number, n, keys: positions.get((number, n, tuple(keys)), 0)), "stands at position")


def test_keys_are_left_as_they_are():
    def reversing(number, n, keys):
        answer = inverse(number, n, keys)
        keys.reverse()
        return answer

    refused(n04.check_inverse(reversing), "the keys that it was given are others afterwards")


def test_position_0_is_an_answer_and_samples_may_have_more_than_18_bits():
    refused(n04.check_inverse(edited(inverse, ("if number < n", "if 0 < number < n"))), "stands at position 0")
    refused(
        n04.check_inverse(lambda number, n, keys: inverse(number, n, keys) if n < 2**18 else 0), "n = 1099511627779"
    )
    refused(n04.check_inverse(lambda number, n, keys: inverse(number % 256, n, keys)), "stands at position")


def test_a_search_with_factors_of_its_own_is_ended_too(monkeypatch):
    monkeypatch.setattr(apart, "PATIENCE", 1)

    def search(number, n, keys):
        plain = [(int(factor), key) for factor, key in keys]
        if n < 2**21:
            return inverse(number, n, plain)
        return next(i for i in range(n) if forwards(i, n, plain) == number)

    if apart.CAN_FORK:
        refused(n04.check_inverse(search), "did not come to an end")


def test_where_no_process_can_be_copied_large_n_are_asked_all_the_same(monkeypatch):
    monkeypatch.setattr(network, "in_a_process_of_its_own", dies)
    assert n04.check_inverse(inverse)
    refused(n04.check_inverse(lambda number, n, keys: inverse(number, n, keys) if n < 2**18 else 0), "stands at")


# ---- exercise 5


def test_images_may_need_more_than_32_bits():
    short_images = edited(walk, ("ids.copy()", "ids.astype(np.int32)"))
    refused(n04.check_walk(short_images), "n = 6442450944")


def test_ids_need_not_be_as_many_as_n():
    def all_of_n(ids, n, network, block):
        images = np.arange(n)
        images[ids] = walk(ids, n, network, block)
        return images[ids] if len(ids) == n else images

    def by_place(ids, n, network, block):
        return walk(np.arange(len(ids)), n, network, block)[ids]

    for answer in (all_of_n, by_place):
        refused(n04.check_walk(answer), "for 129 ids, n = 1025")


def walk_in_two_parts(ids, n, network, block):
    """Refill the seats of each half: 89 calls for 1.1 million, so the contract holds."""
    images = ids.copy()
    half = math.ceil(len(ids) / 2)
    for begin in (0, half):
        outside = np.arange(begin, min(begin + half, len(ids)))
        while len(outside):
            seats = outside[:block]
            images[seats] = network(images[seats])
            outside = np.concatenate([outside[block:], seats[images[seats] >= n]])
    return images


def test_a_walk_in_two_parts_is_right():
    assert n04.check_walk(walk_in_two_parts), n04.check_walk(walk_in_two_parts).message


def test_the_lag_test_refuses_an_order_whose_halves_are_not_equally_long():
    for n in (2**13, 3000):
        with pytest.raises(ValueError, match="no two equal halves"):
            lag_surprise(np.arange(n), 1)
