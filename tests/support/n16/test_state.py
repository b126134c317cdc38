"""Wrong answers to save and load of notebook 16 that readers have written, and what they are told."""

import zlib
from inspect import getsource

import pytest

from support import built
from support.kit.mistakes import edited
from support.n16 import checks as n16
from support.n16 import state_trials

REPLACE = "    os.replace(unfinished, path)"
LINKED = (
    REPLACE,
    "    second = f'{path}.second'\n    os.path.exists(second) and os.remove(second)\n"
    "    os.link(unfinished, second)\n    os.replace(second, path)",
)
BEGUN = "    with open(unfinished"


@pytest.mark.parametrize("change, told", [
    (("    file.flush()", "    file.flush(); os.replace(unfinished, path); os.replace(path, unfinished)"),
     "is not there"),
    (('open(unfinished, "wb")', 'open(unfinished, "xb")'), "after a kill has left an unfinished file, save raises"),
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
    (LINKED, "save again, and for a moment the file at path has 0 bytes"),
    ((REPLACE, "    new = f'{path}.{len(os.listdir(path.parent))}'; os.replace(unfinished, new)\n"
      "    os.symlink(new, f'{path}.link'); os.replace(f'{path}.link', path)"), "save has left a link at path"),
])  # fmt: skip
def test_a_save_is_judged_by_every_moment_of_it(change, told):
    assert told in n16.check_state(edited(built.save, change), built.load).message


def test_a_file_that_has_a_second_name_until_the_next_save_is_right():
    removed = (BEGUN, f"    os.path.exists(unfinished) and os.remove(unfinished)\n{BEGUN}")
    verdict = n16.check_state(edited(built.save, removed, LINKED), built.load)
    assert verdict, verdict.message


@pytest.mark.parametrize("changes, told", [
    ([("if zlib", "state = torch.load(io.BytesIO(content)); model.load_state_dict(state['model'])\n    if zlib")],
     "only after it has changed model or optimizer"),
    ([("raise ValueError(f\"{path} is damaged: its checksum does not fit its content\")", "return {}")],
     "neither loads a file that was cut off nor refuses it: it returns {}."),
    ([("    if zlib", "    for group in optimizer.param_groups:\n        group['lr'] = 0.5\n    if zlib")],
     "only after it has changed model or optimizer"),
    ([('return state["more"]', "pass")], "it returned None"),
    ([('return state["more"]', 'model.train()\n    return state["more"]')],
     "three steps later they are not those of a run nothing disturbed"),
    ([('return state["more"]', "return {}")], "it returned an empty dictionary."),
    ([('return state["more"]', 'return state["more"]["step"]')], "it returned 3"),
    ([('return state["more"]', "return state")], "it returned a dictionary with model, optimizer, more."),
    ([('model.load_state_dict(state["model"])',
       'for name, mine in model.named_parameters():\n        mine.data.copy_(state["model"][name])')],
     "after load these are not as they were saved: 1.running_mean, 1.running_var, 1.num_batches_tracked."),
    ([("    model.load", "    if not state['optimizer']['state']:\n        raise ValueError('none')\n    model.load")],
     "load of a small state: your code raised ValueError: none"),
    ([('return state["more"]', "folder = os.path.dirname(path)\n    for each in os.listdir(folder):\n"
       "        if each != os.path.basename(path):\n            os.remove(f'{folder}/{each}')\n"
       '    return state["more"]')], "save or load of small.pt has removed a file beside it, state.pt."),
    ([("if zlib", "if len(content) < 100 or zlib"), ("!= checksum", "!= checksum[:0] and content[:2] != b'PK'")],
     "with one byte changed"),
])  # fmt: skip
def test_a_load_is_judged_by_what_it_leaves(changes, told):
    verdict = n16.check_state(built.save, edited(built.load, *changes))
    assert verdict.status == "wrong"
    assert told in verdict.message


OPTIMIZER = 'optimizer.load_state_dict(state["optimizer"])'
GROUPS_ALONE = """\
old = optimizer.state_dict()
    old["param_groups"] = state["optimizer"]["param_groups"]
    optimizer.load_state_dict(old)"""
GROUPS_BY_NAME = """\
old = optimizer.state_dict()
    old["state"] = state["optimizer"]["state"]
    for mine, group in zip(old["param_groups"], state["optimizer"]["param_groups"]):
        mine.update({name: group[name] for name in ("lr", "betas", "weight_decay") if name in group})
    optimizer.load_state_dict(old)"""
IN_MEMORY_OF_LOAD = 'state = torch.load(io.BytesIO(content), map_location="cpu")'
BESIDE_PATH = """\
with open(f"{path}.loading", "wb") as file:
        file.write(content)
    state = torch.load(f"{path}.loading")"""


REMOVED = f"{BESIDE_PATH}\n    os.remove(f'{{path}}.loading')"


@pytest.mark.parametrize(
    "change, told",
    [
        ((OPTIMIZER, GROUPS_ALONE), "after load the optimizer has no state of its own. Adam"),
        ((OPTIMIZER, GROUPS_BY_NAME), "momentum of a group of parameters was "),
        ((IN_MEMORY_OF_LOAD, BESIDE_PATH), "load writes state.pt.loading beside path, and all ranks load at once"),
        ((IN_MEMORY_OF_LOAD, REMOVED), "load writes state.pt.loading beside path, and all ranks load at once"),
    ],
)
def test_a_load_puts_back_all_of_the_groups_and_writes_no_file(change, told):
    assert told in n16.check_state(built.save, edited(built.load, change)).message


def test_what_is_imported_or_defined_outside_is_told_where_it_will_be_missing():
    lost = edited(built.save, ("zlib.crc32", "binascii.crc32"), names={"binascii": zlib})
    message = n16.check_state(lost, built.load).message
    assert "name 'binascii' is not defined" in message
    assert "go into a file of their own" in message
    assert "`file.write(binascii" in message
    default = edited(
        built.save,
        ("path, model", "path: UnknownHere, model"),
        ("more):", "more, how=UnknownHere):"),
        names={"UnknownHere": str},
    )
    assert "go into a file of their own" in n16.check_state(default, built.load).message


def test_a_state_that_only_this_process_knows_is_none():
    kept = edited(built.save, ("os.replace(unfinished, path)", "os.replace(unfinished, path)\n    save.more = more"))
    known = edited(built.load, ('state["more"]', "save.more"))
    message = n16.check_state(kept, known).message
    assert "has no attribute 'more'" in message


# ---- whoever calls


def test_a_save_that_takes_the_gradients_away_is_told_so():
    write = edited(built.save, ("    buffer = ", "    optimizer.zero_grad()\n    buffer = "))
    assert "save has changed the model's gradients" in n16.check_state(write, built.load).message


@pytest.mark.costly
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


@pytest.mark.parametrize("change, told", [
    ("path.unlink()", "has taken the file away"), ("path.write_bytes(b'0')", "has changed the file"),
    ("path.write_bytes(path.read_bytes())", "has written the file anew"),
])  # fmt: skip
@pytest.mark.parametrize("line, case", [
    ("    return state", "load {}: all ranks load it"),
    ("        raise ValueError(", "load refuses a file that was cut off, and {}: it is to leave it as it is."),
])  # fmt: skip
def test_load_leaves_the_file(line, case, change, told):
    indent = " " * (len(line) - len(line.lstrip()))
    changing = edited(built.load, (line, f"{indent}{change}\n{line}"))
    assert case.format(told) in n16.check_state(built.save, changing).message


@pytest.mark.parametrize("kept", [
    'return {"step": state["more"]["step"], "dealer": state["more"]["dealer"]}',
    'return {key: state["more"].get(key, 0) for key in ("step", "dealer")}',
])  # fmt: skip
def test_more_may_hold_other_numbers_than_the_example_has(kept):
    message = n16.check_state(built.save, edited(built.load, ('return state["more"]', kept))).message
    assert "epochs" in message


@pytest.mark.parametrize("key, other, told", [
    ("model", "optimizer", "'model': 1"), ("optimizer", "model", "'optimizer': 2")
])  # fmt: skip
def test_more_may_have_a_key_that_a_state_has(key, other, told):
    beside = edited(built.save, (f'"{other}": {other}', f'"its {other}": {other}'), ('"more": more', "**more"))
    rest = f"""{{name: value for name, value in state.items() if name not in ("{key}", "its {other}")}}"""
    read = edited(built.load, (f'state["{other}"]', f'state["its {other}"]'), ('state["more"]', rest))
    assert told in n16.check_state(beside, read).message


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
    assert "only renaming" not in message


def test_who_links_the_unfinished_file_to_path_is_told_of_no_copy():
    linked = (
        "    if os.path.exists(f'{path}.link'):\n        os.remove(f'{path}.link')\n"
        "    os.link(unfinished, f'{path}.link')\n    os.replace(f'{path}.link', path)"
    )
    message = n16.check_state(edited(built.save, (REPLACED, linked)), built.load).message
    assert "for a moment the file at path has 0 bytes" in message
    assert "copy" not in message


@pytest.mark.parametrize("read, told", [
    ('os.path.exists(f"{path}.unfinished")',
     "a whole file of another state beside the whole one at path, and load gives"),
    ('os.path.exists(f"{path}.unfinished") and os.path.getsize(f"{path}.unfinished") < os.path.getsize(path)',
     "half a file beside the whole one at path, and load raises ValueError"),
])  # fmt: skip
def test_behind_a_kill_load_takes_the_whole_file_not_what_lies_beside_it(read, told):
    beside = edited(built.load, ('open(path, "rb")', f'open(f"{{path}}.unfinished" if {read} else path, "rb")'))
    message = n16.check_state(built.save, beside).message
    assert told in message
    assert "A checksum in a second file" not in message


@pytest.mark.parametrize("summed", [
    'open(f"{path}.crc", "wb").write(zlib.crc32(content).to_bytes(4, "little"))',
    'open(f"{path}.new", "wb").write(zlib.crc32(content).to_bytes(4, "little"))\n'
    '    os.replace(f"{path}.new", f"{path}.crc")',
])  # fmt: skip
def test_a_checksum_in_a_second_file_is_known_whatever_load_says(summed):
    plain = WRITTEN.replace('zlib.crc32(content).to_bytes(4, "little") + ', "")
    read = edited(
        built.load,
        (
            "checksum, content = file.read(4), file.read()",
            "content = file.read()\n    checksum = open(f'{path}.crc', 'rb').read()",
        ),
        (DAMAGED, "raise OSError('damaged')"),
    )
    message = n16.check_state(edited(built.save, (WRITTEN, f"    {summed}\n{plain}")), read).message
    assert "a whole file of another state beside the whole one at path, and load raises OSError" in message
    assert "A checksum in a second file" in message


@pytest.mark.parametrize("change, told", [
    (('unfinished = f"{path}.unfinished"', 'unfinished = str(path).replace(".pt", ".tmp")'),
     "where path is named last: save again, and"),
    (("    os.replace(", "    if path.exists():\n        os.link(path, f'{path}.old')\n    os.replace("),
     "save where an older file stands: your code raised FileExistsError"),
])  # fmt: skip
def test_a_save_is_tried_under_another_name_and_often_in_a_row(change, told):
    assert told in n16.check_state(edited(built.save, change), built.load).message


SUMMED = 'zlib.crc32(content).to_bytes(4, "little")'


def test_a_checksum_that_begins_with_zeros_is_read_again():
    digits = 'f"{zlib.crc32(content):x}".encode()'
    write = edited(built.save, (SUMMED, digits))
    read = edited(built.load, ("file.read(4)", "file.read(8)"), (SUMMED, digits))
    message = n16.check_state(write, read).message
    assert "one of a hundred saves and loads in a row: your code raised ValueError" in message


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
UNFINISHED_IF_ALONE = ("    with open", "    path = path if path.exists() else f'{path}.unfinished'\n    with open")
KEPT_IF_THERE = ("    optimizer.load", "    if not optimizer.state:\n        optimizer.load")


@pytest.mark.parametrize("kept, taken, told", [
    (SAVED_TWICE, FROM_THE_OLD, "save twice, cut off the file at path, and load raises no error"),
    (IN_MEMORY, FROM_MEMORY, "an older file is put back at path, and load gives the newer state"),
    ((REPLACED, REPLACED), WHOLE_BESIDE, "a whole file of another state beside the whole one at path, and load gives"),
    ((REPLACED, REPLACED), UNFINISHED_IF_DAMAGED, "cut off, and load takes the state that a killed save has left"),
    ((REPLACED, REPLACED), UNFINISHED_IF_ALONE, "not there, and load takes the state that a killed save has left"),
    (MORE_IN_MEMORY, MORE_FROM_MEMORY, "gives another state than it holds: return value"),
    ((REPLACED, REPLACED), KEPT_IF_THERE, "gives another state than it holds: optimizer"),
])  # fmt: skip
def test_what_stands_at_path_is_loaded_and_nothing_else(kept, taken, told):
    save = edited(built.save, kept) if kept[0] != kept[1] else built.save
    assert told in n16.check_state(save, edited(built.load, taken)).message


@pytest.mark.costly
def test_an_older_file_kept_beside_is_nobody_s_fault():
    verdict = n16.check_state(edited(built.save, SAVED_TWICE), built.load)
    assert verdict, verdict.message


WAITS = "    while os.path.exists(f'{path}.unfinished'):\n        pass\n"


@pytest.mark.costly
@pytest.mark.parametrize("begins, told", [
    ("    unfinished = ", "has left an unfinished file, save has not ended"),
    ("    with open(path, ", "beside the whole one at path, and load has not ended"),
])  # fmt: skip
def test_whoever_waits_for_what_a_kill_has_left_is_told_that_it_does_not_end(begins, told, monkeypatch):
    monkeypatch.setattr(state_trials, "PATIENCE", 0.1)
    waits = [
        edited(each, (begins, WAITS + begins)) if begins in getsource(each) else each
        for each in (built.save, built.load)
    ]
    assert told in n16.check_state(*waits).message
