"""Answers to save and load of notebook 16: right ones of other kinds, and wrong ones that readers have written."""

import io
import os
import zlib

import pytest
import torch

from support import built
from support.kit.mistakes import edited
from support.n16 import checks as n16

# ---- right


def save_in_parts(path, model, optimizer, more):
    """Another right answer: the checksum behind the content, of another kind, under a name that no other save has."""
    import hashlib
    import tempfile

    handle, unfinished = tempfile.mkstemp(dir=path.parent)
    os.close(handle)
    torch.save([model.state_dict(), optimizer.state_dict(), more], unfinished)
    with open(unfinished, "rb") as file:
        digest = hashlib.sha256(file.read()).digest()
    with open(unfinished, "ab") as file:
        file.write(digest)
    os.rename(unfinished, path)


def load_in_parts(path, model, optimizer):
    import hashlib

    content = path.read_bytes()
    assert hashlib.sha256(content[:-32]).digest() == content[-32:], "damaged"
    weights, moments, more = torch.load(io.BytesIO(content[:-32]))
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    return more


def save_pickled(path, model, optimizer, more):
    """And another: pickle inside pickle, the old file kept under another name."""
    import pickle

    content = pickle.dumps((model.state_dict(), optimizer.state_dict(), more))
    beside = path.with_suffix(".new")
    beside.write_bytes(pickle.dumps((zlib.adler32(content), len(content), content)))
    if path.exists():
        backup = path.with_suffix(".old")
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    beside.replace(path)


def load_pickled(path, model, optimizer):
    import pickle

    checksum, length, content = pickle.loads(path.read_bytes())
    if zlib.adler32(content) != checksum or len(content) != length:
        raise OSError("damaged")
    weights, moments, more = pickle.loads(content)
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    return more


def save_as_text(path, model, optimizer, more):
    """And one with the numbers as JSON, and tensors inside a tensor."""
    import json

    buffer = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), buffer)
    inner = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    text = json.dumps(more)
    unfinished = os.path.join(os.path.dirname(path), "unfinished")
    check = zlib.crc32(text.encode(), zlib.crc32(inner.numpy().tobytes()))
    torch.save({"inner": inner, "text": text, "check": check}, unfinished)
    os.rename(unfinished, path)


def load_as_text(path, model, optimizer):
    import json

    outer = torch.load(path)
    inner = outer["inner"].numpy().tobytes()
    if zlib.crc32(outer["text"].encode(), zlib.crc32(inner)) != outer["check"]:
        raise OSError("damaged")
    weights, moments = torch.load(io.BytesIO(inner))
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    return json.loads(outer["text"])


@pytest.mark.parametrize(
    "answer", [(save_as_text, load_as_text), (save_in_parts, load_in_parts), (save_pickled, load_pickled)]
)
def test_other_files_are_right_too(answer):
    verdict = n16.check_state(*answer)
    assert verdict, verdict.message


# ---- wrong


@pytest.mark.parametrize("change, told", [
    (('open(unfinished, "wb")', 'open(unfinished, "xb")'), "after a kill has left an unfinished file, save raises"),
    (("    file.flush()", "    file.flush(); os.replace(unfinished, path); os.replace(path, unfinished)"),
     "is not there"),
    (("    os.replace(unfinished, path)", "    os.replace(unfinished, path)\n    open(path, 'ab').close()"),
     "on bit for bit"),
    (("    os.replace(unfinished, path)", "    from shutil import move\n    move(unfinished, path)"), "on bit for bit"),
    (("    with open(unfinished", "    unfinished = f'/tmp/{os.getpid()}.unfinished'\n    with open(unfinished"),
     "is not written in path's folder"),
    (('unfinished = f"{path}.unfinished"', 'os.makedirs(f"{path}s", exist_ok=True)\n    unfinished = f"{path}s/new"'),
     "save makes a folder of its own"),
    (("    with open(unfinished", "    if os.path.exists(unfinished):\n        os.replace(unfinished, path)\n"
      "    with open(unfinished"),
     "behind a kill that has left half a file, save again, and for a moment the file at path has "),
])  # fmt: skip
def test_a_save_is_judged_by_every_moment_of_it(change, told):
    assert told in n16.check_state(edited(built.save, change), built.load).message


@pytest.mark.parametrize("changes, told", [
    ([("if zlib", "state = torch.load(io.BytesIO(content)); model.load_state_dict(state['model'])\n    if zlib")],
     "only after it has changed model or optimizer"),
    ([("raise ValueError(f\"{path} is damaged: its checksum does not fit its content\")", "return {}")],
     "neither loads a file that was cut off nor refuses it: it returns {}"),
    ([('return state["more"]', "pass")], "it returned None"),
    ([('return state["more"]', 'return state["more"]["step"]')], "it returned 3"),
    ([('return state["more"]', "return state")], "it returned a dictionary with model, optimizer, more."),
    ([('model.load_state_dict(state["model"])',
       'for name, mine in model.named_parameters():\n        mine.data.copy_(state["model"][name])')],
     "after load the weights and buffers are not those that were saved."),
    ([("if zlib", "if len(content) < 100 or zlib"), ("!= checksum", "!= checksum[:0] and content[:2] != b'PK'")],
     "with one byte changed"),
])  # fmt: skip
def test_a_load_is_judged_by_what_it_leaves(changes, told):
    verdict = n16.check_state(built.save, edited(built.load, *changes))
    assert verdict.status == "wrong"
    assert told in verdict.message


def save_with_tensors_summed(path, model, optimizer, more):
    def checksum(part, found=0):
        if torch.is_tensor(part):
            return zlib.crc32(part.detach().numpy().tobytes(), found)
        parts = [*part.values()] if isinstance(part, dict) else part
        for each in parts if isinstance(parts, list) else ():
            found = checksum(each, found)
        return found

    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "more": more}
    state["checksum"] = checksum(state)
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def load_with_tensors_summed(path, model, optimizer):
    def checksum(part, found=0):
        if torch.is_tensor(part):
            return zlib.crc32(part.detach().numpy().tobytes(), found)
        parts = [*part.values()] if isinstance(part, dict) else part
        for each in parts if isinstance(parts, list) else ():
            found = checksum(each, found)
        return found

    state = torch.load(path)
    if state.pop("checksum") != checksum(state):
        raise ValueError("damaged")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["more"]


def save_with_numbers_in_front(path, model, optimizer, more):
    import json

    head = json.dumps(more).encode()
    buffer = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), buffer)
    content = buffer.getvalue()
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(len(head).to_bytes(4, "big") + head + zlib.crc32(content).to_bytes(4, "big") + content)
    os.replace(unfinished, path)


def load_with_numbers_in_front(path, model, optimizer):
    import json

    content = path.read_bytes()
    behind = 4 + int.from_bytes(content[:4], "big")
    more = json.loads(content[4:behind])
    if zlib.crc32(content[behind + 4 :]).to_bytes(4, "big") != content[behind : behind + 4]:
        raise ValueError("damaged")
    weights, moments = torch.load(io.BytesIO(content[behind + 4 :]))
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    return more


def test_a_digit_outside_the_checksum_is_found():
    message = n16.check_state(save_with_numbers_in_front, load_with_numbers_in_front).message
    assert "with one byte changed, and goes on with wrong values without a word: return value" in message


def test_a_checksum_of_all_tensors_lets_a_number_change():
    message = n16.check_state(save_with_tensors_summed, load_with_tensors_summed).message
    assert "with one byte changed, and goes on with wrong values without a word: optimizer" in message


def test_what_is_imported_or_defined_outside_is_told_where_it_will_be_missing():
    lost = edited(built.save, ("zlib.crc32", "binascii.crc32"), names={"binascii": zlib})
    message = n16.check_state(lost, built.load).message
    assert "name 'binascii' is not defined" in message
    assert "go into a file of their own" in message
    assert "`file.write(binascii" in message


def test_a_state_that_only_this_process_knows_is_none():
    kept = edited(built.save, ("os.replace(unfinished, path)", "os.replace(unfinished, path)\n    save.more = more"))
    known = edited(built.load, ('state["more"]', "save.more"))
    message = n16.check_state(kept, known).message
    assert "has no attribute 'more'" in message


# ---- whoever calls


def test_a_save_that_writes_into_its_caller_s_dictionary_is_told_so_and_spoils_no_other_answer():
    into_more = edited(
        built.save,
        (
            'state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "more": more}',
            'more["model"] = model.state_dict()\n    more["optimizer"] = optimizer.state_dict()\n    state = more',
        ),
    )
    out_of_it = edited(
        built.load, ('state["more"]', '{key: state[key] for key in state if key not in ("model", "optimizer")}')
    )
    message = n16.check_state(into_more, out_of_it).message
    assert (
        "save has changed the dictionary more, which belongs to its caller: it now has model, optimizer, too."
        in message
    )
    verdict = n16.check_state(built.save, built.load)
    assert verdict, verdict.message


def test_a_load_that_takes_the_file_away_is_told_so():
    away = edited(built.load, ('return state["more"]', 'path.unlink()\n    return state["more"]'))
    assert "load has taken the file away" in n16.check_state(built.save, away).message


def test_a_load_that_takes_a_damaged_file_away_is_told_so():
    raises = "        raise ValueError("
    away = edited(built.load, (raises, f"        path.unlink()\n{raises}"))
    message = n16.check_state(built.save, away).message
    assert "load refuses a file that was cut off, and takes it away" in message


@pytest.mark.parametrize("kept", [
    'return {"step": state["more"]["step"], "dealer": state["more"]["dealer"]}',
    'return {key: state["more"].get(key, 0) for key in ("step", "dealer")}',
])  # fmt: skip
def test_more_may_hold_other_numbers_than_the_example_has(kept):
    message = n16.check_state(built.save, edited(built.load, ('return state["more"]', kept))).message
    assert "epochs" in message


def test_more_may_have_a_key_that_a_state_has():
    beside = edited(built.save, ('"more": more', "**more"))
    rest = '{key: value for key, value in state.items() if key not in ("model", "optimizer")}'
    message = n16.check_state(beside, edited(built.load, ('state["more"]', rest))).message
    assert "'model': 1" in message


@pytest.mark.parametrize("number, told", [
    ("torch.tensor(float({}))", "tensor(3.)"), ("torch.tensor(float({})).item()", "'step': 3.0"),
    ("float({})", "'step': 3.0"),
])  # fmt: skip
def test_a_number_comes_back_as_what_it_was(number, told):
    kept = 'return {key: value if isinstance(value, dict) else NUMBER for key, value in state["more"].items()}'
    kept = kept.replace("NUMBER", number.format("value"))
    message = n16.check_state(built.save, edited(built.load, ('return state["more"]', kept))).message
    assert "load should return {'step': 3" in message
    assert told in message


def test_a_text_that_reads_like_the_dictionary_is_shown_as_a_text():
    message = n16.check_state(built.save, edited(built.load, ('state["more"]', 'str(state["more"])'))).message
    assert """it returned "{'step': 3""" in message


def test_the_first_save_is_watched_too():
    straight = edited(
        built.save,
        (
            '    unfinished = f"{path}.unfinished"\n',
            '    unfinished = f"{path}.unfinished" if path.exists() else path\n',
        ),
        ("    os.replace(unfinished, path)", "    if unfinished != path:\n        os.replace(unfinished, path)"),
    )
    message = n16.check_state(straight, built.load).message
    assert "the first save, and for a moment the file at path has " in message
    assert "no restart can load it" in message


WRITTEN = """\
    with open(unfinished, "wb") as file:
        file.write(zlib.crc32(content).to_bytes(4, "little") + content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)"""
STRAIGHT = '    open(path, "wb").write(zlib.crc32(content).to_bytes(4, "little") + content)'
COPIED = WRITTEN.replace("os.replace(unfinished, path)", 'open(path, "wb").write(open(unfinished, "rb").read())')


def test_a_file_that_is_opened_and_written_in_one_line_is_empty_in_between():
    message = n16.check_state(edited(built.save, (WRITTEN, COPIED)), built.load).message
    assert "save again, and for a moment the file at path has 0 bytes of " in message
    assert "folder" not in message


OVER = """\
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(handle, zlib.crc32(content).to_bytes(4, "little") + content)
    os.ftruncate(handle, 4 + len(content))
    os.close(handle)"""
WITH_A_COPY = '    open(f"{path}.copy", "wb").write(content)'


@pytest.mark.parametrize("instead", [OVER, f"{STRAIGHT}\n{WITH_A_COPY}"])
def test_whoever_writes_into_the_file_at_path_is_told_of_that_file_alone(instead):
    message = n16.check_state(edited(built.save, (WRITTEN, instead)), built.load).message
    assert message.endswith("You write onto the only good file: write beside it, then rename.")
    assert "its name" not in message
    assert "folder" not in message


def test_an_older_file_copied_first_is_not_taken_for_the_new_one():
    first = SAVED_TWICE[1].removesuffix(REPLACED) + STRAIGHT
    message = n16.check_state(edited(built.save, (WRITTEN, first)), built.load).message
    assert "though another file lies beside it" in message
    assert "A copy is written byte by byte" not in message


def test_behind_a_kill_load_takes_the_whole_file_not_what_lies_beside_it():
    beside = edited(
        built.load,
        ('open(path, "rb")', 'open(f"{path}.unfinished" if os.path.exists(f"{path}.unfinished") else path, "rb")'),
    )
    message = n16.check_state(built.save, beside).message
    assert "a kill has left half a file beside the whole one at path, and load raises ValueError" in message
    assert "A checksum in a second file" not in message


REPLACED = "    os.replace(unfinished, path)"
SAVED_TWICE = (
    REPLACED,
    f"    if path.exists():\n        import shutil\n\n        shutil.copy(path, f'{{path}}.old')\n{REPLACED}",
)
DAMAGED = 'raise ValueError(f"{path} is damaged: its checksum does not fit its content")'
FROM_THE_OLD = (DAMAGED, 'content = open(f"{path}.old", "rb").read()[4:]')
IN_MEMORY = (REPLACED, f"{REPLACED}\n    save.last = content")
FROM_MEMORY = ("    state = ", '    content = getattr(save, "last", content)\n    state = ')
WHOLE_BESIDE = (
    "    state = ",
    """\
    if os.path.exists(f"{path}.unfinished"):
        found = open(f"{path}.unfinished", "rb").read()
        if zlib.crc32(found[4:]).to_bytes(4, "little") == found[:4]:
            content = found[4:]
    state = """,
)
MORE_IN_MEMORY = (REPLACED, f"{REPLACED}\n    save.more = more")
MORE_FROM_MEMORY = ('return state["more"]', 'return getattr(save, "more", state["more"])')
UNFINISHED_IF_DAMAGED = (DAMAGED, 'content = open(f"{path}.unfinished", "rb").read()[4:]')
KEPT_IF_THERE = ("    optimizer.load", "    if not optimizer.state:\n        optimizer.load")


@pytest.mark.parametrize("kept, taken, told", [
    (SAVED_TWICE, FROM_THE_OLD, "save twice, cut off the file at path, and load raises no error"),
    (IN_MEMORY, FROM_MEMORY, "an older file is put back at path, and load gives the newer state"),
    ((REPLACED, REPLACED), WHOLE_BESIDE, "a whole file of another state beside the whole one at path, and load gives"),
    ((REPLACED, REPLACED), UNFINISHED_IF_DAMAGED, "cut off, and load takes the state that a killed save has left"),
    (MORE_IN_MEMORY, MORE_FROM_MEMORY, "gives another state than it holds: return value"),
    ((REPLACED, REPLACED), KEPT_IF_THERE, "gives another state than it holds: optimizer"),
])  # fmt: skip
def test_what_stands_at_path_is_loaded_and_nothing_else(kept, taken, told):
    save = edited(built.save, kept) if kept[0] != kept[1] else built.save
    assert told in n16.check_state(save, edited(built.load, taken)).message


def test_an_older_file_kept_beside_is_nobody_s_fault():
    verdict = n16.check_state(edited(built.save, SAVED_TWICE), built.load)
    assert verdict, verdict.message
