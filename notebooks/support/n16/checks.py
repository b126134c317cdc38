"""Predictions and exercises of notebook 16, when it breaks: a state that survives a kill, and the casebook."""

from __future__ import annotations

from support.built import load, save
from support.kit.exercise import Exercise
from support.kit.exercise import use as use
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.n16.case_four_numbers import check_job_2 as check_job_2
from support.n16.case_friday import check_job_1 as check_job_1
from support.n16.case_good_at_home import check_job_4 as check_job_4
from support.n16.case_half_the_memory import check_job_7 as check_job_7
from support.n16.case_higher_curve import check_job_3 as check_job_3
from support.n16.case_less_to_keep import check_job_12 as check_job_12
from support.n16.case_longer_rows import check_job_11 as check_job_11
from support.n16.case_more_rows import check_job_6 as check_job_6
from support.n16.case_nobody_is_slow import check_job_10 as check_job_10
from support.n16.case_smaller_card import check_job_5 as check_job_5
from support.n16.case_three_cuts import check_job_8 as check_job_8
from support.n16.case_three_sevenths import check_job_9 as check_job_9
from support.n16.guesses import guess_flipped as guess_flipped
from support.n16.guesses import guess_named as guess_named
from support.n16.state_trials import fault_of_state

# ---- exercise 1: save and load

_REPLACE = "os.replace(unfinished, path)"
_BESIDE = 'f"{path}.unfinished"'

check_state = Exercise(
    "save and load",
    reference=(save, load),
    answers=2,
    judge=judged(
        fault_of_state,
        "a run that loads goes on bit for bit as one that nothing disturbed, at every moment of saving a "
        "whole file is "
        "there, and of a damaged one nothing wrong gets in.",
    ),
    mistakes=famous(
        (save, load),
        {
            "You write onto the only good file: write beside it, then rename.": (
                _BESIDE,
                "path",
                _REPLACE,
                "",
            ),
            "The file at path is written byte by byte; only renaming is one operation.": (
                _REPLACE,
                "import shutil; shutil.copy(unfinished, path)",
            ),
            "Don't take the old file away first: os.replace puts the new one in its place in one operation.": (
                _REPLACE,
                "os.path.exists(path) and os.remove(path); os.rename(unfinished, path)",
            ),
            "Another folder may be another disk: write beside path, under its name with an ending.": (
                _BESIDE,
                "__import__('tempfile').mkstemp()[1]",
            ),
            "Has the finished file got its name?": (_REPLACE, ""),
            "The model has to take over what the file has: load_state_dict.": (
                'model.load_state_dict(state["model"])',
                "",
            ),
            "Adam's two moments are part of the state: without them it begins to guess anew.": (
                'optimizer.load_state_dict(state["optimizer"])',
                "",
            ),
            "Without its place in the epoch a new attempt does not know which rows are done.": (
                'return state["more"]',
                "return {}",
            ),
            "Adam's moments are not all: the optimizer's param_groups hold what a schedule has changed.": (
                'optimizer.load_state_dict(state["optimizer"])',
                "optimizer.state.update(type(optimizer)(model.parameters()).state)\n"
                "    old = optimizer.state_dict()\n"
                "    old['state'] = state['optimizer']['state']\n"
                "    optimizer.load_state_dict(old)",
            ),
            "It has got its name before its bytes were in it: finish and close the file first.": (
                "        file.flush()\n        os.fsync(file.fileno())\n",
                "        os.replace(unfinished, path)\n",
                f"    {_REPLACE}\n\n\ndef load",
                "\n\ndef load",
            ),
            "A checksum in a second file: a kill between the two leaves a new one beside an old one.": (
                'file.write(zlib.crc32(content).to_bytes(4, "little") + content)',
                "file.write(content)\n"
                "    with open(f'{path}.crc', 'wb') as file:\n"
                "        file.write(zlib.crc32(content).to_bytes(4, 'little'))\n"
                "    with open(unfinished, 'ab') as file:",
                "checksum, content = file.read(4), file.read()",
                "content = file.read()\n"
                "    with open(f'{path}.crc', 'rb') as file:\n"
                "        checksum = file.read()",
            ),
            "The learning rate is right; the groups hold more that a schedule may change.": (
                'optimizer.load_state_dict(state["optimizer"])',
                "old = optimizer.state_dict()\n"
                "    old['state'] = state['optimizer']['state']\n"
                "    for mine, group in zip(old['param_groups'], state['optimizer']['param_groups']):\n"
                "        mine['lr'] = group['lr']\n"
                "    optimizer.load_state_dict(old)",
            ),
            "Python's hash of bytes is another in every process.": (
                'zlib.crc32(content).to_bytes(4, "little")',
                '(hash(content) % 2**32).to_bytes(4, "little")',
            ),
            "What a kill has left is still in the file: write over it, not behind it.": (
                'open(unfinished, "wb")',
                'open(unfinished, "ab")',
            ),
            "Longer than what you write: what a kill has left of a larger file must be cut off.": (
                '    with open(unfinished, "wb") as file:\n',
                "    open(unfinished, 'ab').close()\n    with open(unfinished, 'r+b') as file:\n",
            ),
            "A checksum must cover all that load reads.": (
                "def save(path, model, optimizer, more):\n",
                "def save(path, model, optimizer, more):\n    checksum = 0\n"
                "    for value in model.state_dict().values():\n"
                "        checksum = zlib.crc32(value.numpy().tobytes(), checksum)\n",
                'zlib.crc32(content).to_bytes(4, "little") + content',
                'checksum.to_bytes(4, "little") + content',
                '    if zlib.crc32(content).to_bytes(4, "little") != checksum:\n',
                '    state = torch.load(io.BytesIO(content), map_location="cpu")\n    found = 0\n'
                '    for value in state["model"].values():\n'
                "        found = zlib.crc32(value.numpy().tobytes(), found)\n"
                '    if found.to_bytes(4, "little") != checksum:\n',
            ),
            "torch.load misses a changed byte: keep a checksum of all bytes in the file, and compare it first.": (
                "!= checksum",
                "== None",
            ),
        },
    ),
)
"""Exercise 1: (save, load); a run that died and goes on must be the run that did not die."""
