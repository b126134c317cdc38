"""Wrong cursors of notebook 04, exercise 2, that once passed its check, each with what is said of it now."""

import inspect
import json
import os
import pathlib
import pickle
import sqlite3
import uuid

import numpy as np
import pytest
import torch

from support.kit.mistakes import edited, with_methods
from support.n04 import checks as n04
from support.n04 import cursor as n04_cursor
from support.n04.solved import Cursor, std_shuffle


def refused(verdict, said):
    """Hold a verdict against the words that must be in it."""
    assert verdict.status == "wrong", verdict
    assert said in verdict.message, verdict.message


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


def test_fewer_samples_than_ranks_are_dealt_too():
    raising = edited(Cursor, ("place % self.size for", "([*range(self.size)] * 2)[place] for"))
    verdict = n04.check_cursor(raising)
    refused(verdict, "Cursor(1, 3, 0), next(1): your code raised IndexError")
    refused(verdict, "Fewer samples than ranks are dealt, too")


def test_a_load_finds_its_place_among_few_samples_too():
    put_back = "self.epoch, self.position = epoch, position"
    forgetting = edited(Cursor, (put_back, f"{put_back} if self.size >= self.num_replicas else self.begin"))
    refused(n04.check_cursor(forgetting), "Cursor(1, 3, 0), next(1), save, load, next(1)")


def test_the_shard_has_an_end_where_samples_are_fewer_than_ranks():
    def next_empty(self, batch_size):
        batch = Cursor.next(self, batch_size)
        return [] if batch is None and self.size < self.num_replicas else batch

    empty = with_methods(Cursor, next=next_empty)
    refused(n04.check_cursor(empty), "Cursor(1, 3, 0), 100 times next(1): the last one gives [], not None.")


def test_a_batch_that_waits_for_more_than_the_shard_has_is_told_that_it_has_no_end(monkeypatch):
    monkeypatch.setattr(n04_cursor, "MOST_LINES", 10_000)
    endless = edited(Cursor, ("return batch or None", "while len(batch) < batch_size: pass\n        return batch"))
    refused(n04.check_cursor(endless), "Cursor(12, 3, 0), position, next(3), next(3): your code has run 120,000 lines")


@pytest.mark.parametrize(("made", "kind"), [(torch.tensor, "Tensor"), (float, "float"), (np.int64, "int64")])
def test_samples_are_ints(made, kind):
    made_so = edited(Cursor, ("[place %", "[made(place) %"), names={"made": made})
    refused(n04.check_cursor(made_so), f", a list of {kind}, not [0, 2, 1]")


def test_a_cursor_is_not_changed_by_who_empties_what_it_gave():
    def reset(self):
        if vars(self).get("epoch_of_shard") == self.epoch:
            self.position = self.begin
        else:
            Cursor.reset(self)

    def next_whole(self, batch_size):
        batch = Cursor.next(self, batch_size)
        return self.shard if batch == self.shard else batch

    refused(n04.check_cursor(with_methods(Cursor, reset=reset, next=next_whole)), "next gives a new list each time")


def test_who_shuffles_the_first_piece_everywhere_is_not_said_to_shuffle_its_own():
    first = edited(Cursor, ("(padded, self.epoch)[self.begin : self.begin + length]", "(range(length), self.epoch)"))
    refused(n04.check_cursor(first), "This shuffles one piece only")


def test_a_list_that_was_handed_out_stays_what_it_was():
    def next_in_one_list(self, batch_size):
        batch = Cursor.next(self, batch_size)
        kept = vars(self).setdefault("kept", [])
        kept[:] = batch or []
        return batch and kept

    refused(n04.check_cursor(with_methods(Cursor, next=next_in_one_list)), "next gives a new list each time")


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


@pytest.mark.costly
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


def test_an_order_that_all_cursors_share_is_refused():
    order = []

    class Shared(Cursor):
        def reset(self):
            super().reset()
            length = -(-self.size // self.num_replicas)
            padded = [place % self.size for place in range(length * self.num_replicas)]
            order[:] = std_shuffle(padded, self.epoch)
            self.end = self.begin + length

        def next(self, batch_size):
            batch = order[self.position : min(self.end, self.position + batch_size)]
            self.position += len(batch)
            return batch or None

    refused(n04.check_cursor(Shared), "Two cursors are two")


def test_a_state_can_be_loaded_twice():
    def save(self):
        return {"shard": self.epoch_of_shard, "epoch": self.epoch, "position": self.position}

    def load(self, state):
        self.epoch = state.pop("shard")
        self.reset()
        self.epoch = state.pop("epoch")
        self.position = state.pop("position")

    popping = with_methods(Cursor, save=save, load=load)
    refused(n04.check_cursor(popping), "load is to leave the state as it is")

    def save_numbers(self):
        return list(Cursor.save(self))

    def load_numbers(self, state):
        Cursor.load(self, state)
        self.kept = state

    def next_noted(self, batch_size):
        batch = Cursor.next(self, batch_size)
        if hasattr(self, "kept"):
            self.kept[2] = self.position
        return batch

    writing = with_methods(Cursor, save=save_numbers, load=load_numbers, next=next_noted)
    refused(n04.check_cursor(writing), "load is to leave the state as it is")


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


@pytest.mark.costly
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


def one_dict(self):
    vars(self).setdefault("said", {}).update(shard=self.epoch_of_shard, epoch=self.epoch, position=self.position)
    return self.said


def load_of_a_dict(self, state):
    Cursor.load(self, (state["shard"], state["epoch"], state["position"]))


def test_a_save_does_not_change_the_state_that_was_saved_before():
    refreshed = with_methods(Cursor, save=one_dict, load=load_of_a_dict)
    refused(n04.check_cursor(refreshed), "A state stays what it was when it was saved")


def test_a_save_after_load_does_not_change_the_state_that_was_loaded():
    def load(self, state):
        load_of_a_dict(self, state)
        self.said = state

    keeping = with_methods(Cursor, save=lambda self: dict(one_dict(self)), load=load)
    refused(n04.check_cursor(keeping), "load is to leave the state as it is")


def in_bytes():
    return lambda self: bytes(n % 256 for n in Cursor.save(self)), lambda self, state: Cursor.load(self, tuple(state))


def as_a_share():
    def save(self):
        *epochs, position = Cursor.save(self)
        return *epochs, (position - self.begin) / len(self.shard)

    def load(self, state):
        *epochs, share = state
        Cursor.load(self, (*epochs, self.begin + int(share * len(self.shard))))

    return save, load


@pytest.mark.parametrize("kept", [in_bytes, as_a_share])
def test_positions_of_long_shards_survive_a_load(kept):
    save, load = kept()
    refused(n04.check_cursor(with_methods(Cursor, save=save, load=load)), "Cursor(900, 1, 0), ")


def test_a_position_that_changes_in_its_place_is_told_as_it_was():
    def load(self, state):
        epoch_of_shard, epoch, position = state
        Cursor.load(self, (int(epoch_of_shard), int(epoch), position))

    in_place = with_methods(Cursor, save=lambda self: torch.tensor(Cursor.save(self)), load=load)
    refused(n04.check_cursor(in_place), "load is to leave the state as it is")


def test_an_epoch_that_waits_may_need_more_bits_than_a_short_float_has():
    def save(self):
        epoch_of_shard, epoch, position = Cursor.save(self)
        return epoch_of_shard, int(np.float32(epoch)), position

    refused(n04.check_cursor(with_methods(Cursor, save=save)), "Cursor(900, 1, 0), ")
