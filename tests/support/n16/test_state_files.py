"""Files of other kinds than the solution's: right ones, and such whose checksum misses something."""

import io
import os
import zlib

import pytest
import torch

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
@pytest.mark.costly
def test_other_files_are_right_too(answer):
    verdict = n16.check_state(*answer)
    assert verdict, verdict.message


# ---- wrong


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


def save_as_an_archive(path, model, optimizer, more):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "more": more}, f"{path}.new")
    os.replace(f"{path}.new", path)


def load_with_the_archive_s_checksums(path, model, optimizer):
    import zipfile

    if zipfile.ZipFile(path).testzip() is not None:
        raise ValueError("damaged")
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["more"]


@pytest.mark.costly
def test_an_archive_s_own_checksums_do_not_cover_its_directory():
    message = n16.check_state(save_as_an_archive, load_with_the_archive_s_checksums).message
    assert "with one byte changed, and goes on with wrong values without a word: weights" in message


@pytest.mark.costly
def test_a_digit_outside_the_checksum_is_found():
    message = n16.check_state(save_with_numbers_in_front, load_with_numbers_in_front).message
    assert "with one byte changed, and goes on with wrong values without a word: return value" in message


@pytest.mark.costly
def test_a_checksum_of_all_tensors_lets_a_number_change():
    message = n16.check_state(save_with_tensors_summed, load_with_tensors_summed).message
    assert "with one byte changed, and goes on with wrong values without a word: optimizer" in message
