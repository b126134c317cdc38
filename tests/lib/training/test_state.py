"""A training state is whole or refused, and goes on bit for bit."""

import pickle

import numpy as np
import pytest
import torch

from lib.training.state import load_state, save_state
from support.training import CAPTIONS, TinyClip, caption_loss
from tests.lib.refusal import refuses


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return self.path.touch, ()


def trained(steps=3, width=32):
    model = TinyClip(width)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    advance(model, optimizer, steps)
    return model, optimizer


def advance(model, optimizer, steps):
    images = torch.linspace(0, 1, 640).view(10, 1, 8, 8)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(caption_loss(model, images, CAPTIONS))
        optimizer.step()


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_state_continues_bit_for_bit(tmp_path):
    model, optimizer = trained()
    save_state(tmp_path / "s.npz", model, optimizer, {"seed": 0}, step=3, place={"epoch": 1})
    other, its_optimizer = trained(steps=1)
    assert load_state(tmp_path / "s.npz", other, its_optimizer, {"seed": 0}) == {"step": 3, "place": {"epoch": 1}}
    for one, its in ((model, optimizer), (other, its_optimizer)):
        advance(one, its, 2)
    assert equal(weights(model), weights(other))
    save_state(tmp_path / "s.npz", *trained(steps=0), {})  # before the first step there are no moments
    assert load_state(tmp_path / "s.npz", *trained(), {}) == {}


def test_whoever_dies_while_saving_leaves_the_old_state(tmp_path, monkeypatch):
    path = tmp_path / "s.npz"
    save_state(path, *trained(), {}, step=1)
    before = path.read_bytes()

    def die_half_way(file, **arrays):
        file.write(b"PK half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", die_half_way)
    refuses(KeyboardInterrupt, "", save_state, path, *trained(), {}, step=2)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["s.npz"]
    monkeypatch.undo()
    (tmp_path / ".s.npz.unfinished").write_bytes(b"of one that was killed")
    save_state(path, *trained(), {}, step=3)
    assert load_state(path, *trained(), {}) == {"step": 3}
    assert [p.name for p in tmp_path.iterdir()] == ["s.npz"]


@pytest.mark.parametrize("damage", [
    "cut", "empty", "text", "flipped", "method", "locked", "bomb", "pickle", "foreign", "format",
])  # fmt: skip
def test_a_file_that_is_no_state_is_refused_and_nothing_is_changed(tmp_path, damage):
    path = tmp_path / "s.npz"
    save_state(path, *trained(), {})
    content = path.read_bytes()
    if damage == "pickle":
        np.savez(path, allow_pickle=True, json=np.array([print], dtype=object))
    elif damage == "bomb":
        path.write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    elif damage == "foreign":
        np.savez(path, x=np.zeros(3))
    elif damage == "format":
        np.savez(path, json=np.array('{"format": 99, "groups": [], "identity": {}, "more": {}}'))
    elif damage in ("method", "locked"):  # of one entry in the zip's table: how it is packed; whether it is encrypted
        at = content.index(b"PK\x01\x02") + (10 if damage == "method" else 8)
        path.write_bytes(content[:at] + bytes([content[at] | 1 | 76 * (damage == "method")]) + content[at + 1 :])
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        changed = {"cut": content[:middle], "empty": b"", "text": b"hello", "flipped": flipped}
        path.write_bytes(changed[damage])
    model, optimizer = trained(steps=1)
    before = weights(model)
    refuses(ValueError, "s.npz .*remove it to begin anew", load_state, path, model, optimizer, {})
    assert equal(weights(model), before)
    assert not (tmp_path / "exploded").exists()


def half(optimizer_of=torch.optim.Adam, steps=2):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).to(torch.bfloat16)
    model.register_buffer("scale", torch.tensor(1.1, dtype=torch.bfloat16))
    model.register_buffer("small", torch.tensor([1.5, -2.0]).to(torch.float8_e5m2))
    optimizer = optimizer_of(model.parameters(), lr=0.1)
    for step in range(steps):
        model(torch.full((2, 3), 1.0 + step).to(torch.bfloat16)).sum().backward()
        optimizer.step()
    return model, optimizer


def test_numbers_that_numpy_does_not_have_come_back_bit_for_bit(tmp_path):
    model, optimizer = half()
    save_state(tmp_path / "s.npz", model, optimizer, {})
    other, its_optimizer = half(steps=0)
    load_state(tmp_path / "s.npz", other, its_optimizer, {})
    moments = [optimizer.state[p]["exp_avg_sq"] for p in model.parameters()]
    its = [its_optimizer.state[p]["exp_avg_sq"] for p in other.parameters()]
    there = [*model.state_dict().values(), *moments]
    here = [*other.state_dict().values(), *its]
    assert {tensor.dtype for tensor in there} > {torch.bfloat16, torch.float8_e5m2}
    assert all(a.dtype == b.dtype and torch.equal(a.float(), b.float()) for a, b in zip(there, here, strict=True))
    with pytest.raises(ValueError, match=r"0.bias has shape \(3,\), torch.bfloat16, in .* torch.float32, here"):
        load_state(tmp_path / "s.npz", model.float(), optimizer, {})


@pytest.mark.parametrize("saved, here", [("Adam", "SGD"), ("SGD", "Adam"), ("Adam", "AdamW")])
def test_the_state_of_another_optimizer_is_refused_with_both_names(tmp_path, saved, here):
    save_state(tmp_path / "s.npz", *half(getattr(torch.optim, saved)), {})
    model, optimizer = half(getattr(torch.optim, here), steps=1)
    before = weights(model)
    with pytest.raises(ValueError, match=f"saved with optimizer='{saved}', this run has optimizer='{here}'"):
        load_state(tmp_path / "s.npz", model, optimizer, {})
    assert equal(weights(model), before)


def test_a_state_of_another_model_or_run_is_refused_and_says_what_differs(tmp_path):
    path = tmp_path / "s.npz"
    save_state(path, *trained(), {"seed": 0, "text": 7})
    model, optimizer = trained(steps=1, width=16)
    before = weights(model)
    other = r"another model: image_encoder.5.bias has shape \(32,\), .* in the file and has shape \(16,\)"
    refuses(ValueError, other, load_state, path, model, optimizer, {"seed": 0, "text": 7})
    with pytest.raises(ValueError, match="saved with text=7, this run has text=8; choose another folder"):
        load_state(path, model, optimizer, {"seed": 0, "text": 8})
    refuses(ValueError, "this run has more=1", load_state, path, model, optimizer, {"seed": 0, "text": 7, "more": 1})
    assert equal(weights(model), before)
    refuses(FileNotFoundError, "", load_state, tmp_path / "none.npz", model, optimizer, {})
