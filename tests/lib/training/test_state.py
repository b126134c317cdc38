"""A training state is whole or refused, and goes on bit for bit."""

import json
import pickle

import numpy as np
import pytest
import torch

from lib.training.state import load_state, save_state
from lib.training.state_file import read_state_file, write_state_file
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


# -------------------------------------------------------------------------------------------------------- the optimizer


def two_alike(which=(0, 1), optimizer_of=torch.optim.Adam, steps=2, **settings):
    """Return a model of two layers of equal shapes, and an optimizer of some of them after so many steps."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    parameters = [parameter for layer in which for parameter in model[layer].parameters()]
    optimizer = optimizer_of(parameters, lr=0.1, **settings)
    for _ in range(steps):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    return model, optimizer


def everything(model, optimizer):
    """Return all that a load could change, as one comparable text of exact numbers."""
    state = optimizer.state_dict()
    return repr([(name, value.tolist()) for name, value in model.state_dict().items()]) + repr(state)


@pytest.mark.parametrize(
    ("saved", "here", "says"),
    [
        ((1,), (0,), "has 1.weight where this one has 0.weight"),
        ((0, 1), (1, 0), "has 0.weight where this one has 1.weight"),
        ((0,), (0, 1), r"groups of \[2\] parameters, this one has \[4\]"),
    ],
)
def test_moments_go_to_the_parameters_that_they_are_of_or_are_refused(tmp_path, saved, here, says):
    save_state(tmp_path / "s.npz", *two_alike(saved), {})
    model, optimizer = two_alike(here, steps=1)
    before = everything(model, optimizer)
    refuses(ValueError, says, load_state, tmp_path / "s.npz", model, optimizer, {})
    assert everything(model, optimizer) == before


def test_other_groups_of_the_same_parameters_are_refused(tmp_path):
    model, _ = two_alike()
    layers = [{"params": list(layer.parameters())} for layer in model]
    save_state(tmp_path / "s.npz", model, torch.optim.SGD(layers, lr=0.1), {})
    one_group = torch.optim.SGD(model.parameters(), lr=0.1)
    says = r"groups of \[2, 2\] parameters, this one has \[4\]"
    refuses(ValueError, says, load_state, tmp_path / "s.npz", model, one_group, {})


def test_a_parameter_that_the_model_does_not_have_would_be_lost_and_is_refused(tmp_path):
    model, _ = two_alike()
    temperature = torch.nn.Parameter(torch.ones(7))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    refuses(
        ValueError, r"of shape \(7,\) that is none of the model's", save_state, tmp_path / "s", model, optimizer, {}
    )
    assert not list(tmp_path.iterdir())


def without(name):
    return lambda arrays: arrays.pop(name)


def instead(name, change):
    return lambda arrays: arrays.update({name: change(arrays[name])})


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (without("optimizer/0/exp_avg"), "optimizer/0/exp_avg is missing"),
        (without("model/1.bias"), "model/1.bias is missing"),
        (lambda arrays: arrays.update({"optimizer/9/exp_avg": np.zeros(3)}), "optimizer/9/exp_avg is not told of"),
        (instead("optimizer/0/exp_avg", lambda array: array.astype("int64")), "torch.int64, and was .* torch.float32"),
        (instead("optimizer/0/exp_avg", lambda array: array.astype("int32")), "torch.int32, and was .* torch.float32"),
        (instead("optimizer/0/exp_avg", lambda array: array[:2]), r"has shape \(2, 3\), .* and was \(3, 3\)"),
    ],
)
def test_a_moment_that_is_missing_foreign_or_another_is_refused_and_nothing_is_changed(tmp_path, damage, says):
    path = tmp_path / "s.npz"
    save_state(path, *two_alike(), {})
    with np.load(path) as file:
        arrays = dict(file)
    damage(arrays)
    np.savez(path, **arrays)
    model, optimizer = two_alike(steps=1)
    before = everything(model, optimizer)
    refuses(ValueError, says, load_state, path, model, optimizer, {})
    assert everything(model, optimizer) == before


def test_moments_that_loading_would_round_are_refused_and_everything_is_put_back(tmp_path):
    """torch turns moments into the parameter's kind of numbers: whoever keeps finer ones would go on with coarser."""
    model, optimizer = two_alike()
    first = next(model.parameters())
    optimizer.state[first]["exp_avg"] = optimizer.state[first]["exp_avg"].double()
    save_state(tmp_path / "s.npz", model, optimizer, {})
    other, its_optimizer = two_alike(steps=1)
    before = everything(other, its_optimizer)
    says = "torch.float64 as exp_avg of parameter 0, which the optimizer turned into torch.float32"
    refuses(ValueError, says, load_state, tmp_path / "s.npz", other, its_optimizer, {})
    assert everything(other, its_optimizer) == before


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Adam", {"amsgrad": True}), ("AdamW", {"fused": True}), ("SGD", {"momentum": 0.9}), ("SGD", {}),
        ("Adafactor", {}), ("Adagrad", {}), ("RMSprop", {"momentum": 0.5}), ("ASGD", {}), ("Rprop", {}), ("NAdam", {}),
    ],
)  # fmt: skip
def test_every_optimizer_goes_on_bit_for_bit(tmp_path, name, settings, steps):
    optimizer_of = getattr(torch.optim, name)
    torch.manual_seed(0)
    model, optimizer = two_alike(optimizer_of=optimizer_of, steps=steps, **settings)
    save_state(tmp_path / "s.npz", model, optimizer, {})
    torch.manual_seed(1)
    other, its_optimizer = two_alike(optimizer_of=optimizer_of, steps=1, **settings)
    load_state(tmp_path / "s.npz", other, its_optimizer, {})
    assert everything(other, its_optimizer) == everything(model, optimizer)
    for one, its in ((model, optimizer), (other, its_optimizer)):
        its.zero_grad()
        one(torch.ones(2, 3)).square().sum().backward()
        its.step()
    assert equal(weights(other), weights(model))


def test_a_learning_rate_that_is_a_tensor_comes_back_as_one(tmp_path):
    model, optimizer = two_alike()
    optimizer.param_groups[0]["lr"] = torch.tensor(0.25)
    optimizer.param_groups[0]["a/name/with/slashes"] = torch.tensor(0.5)
    save_state(tmp_path / "s.npz", model, optimizer, {})
    other, its_optimizer = two_alike()
    load_state(tmp_path / "s.npz", other, its_optimizer, {})
    assert torch.equal(its_optimizer.param_groups[0]["lr"], torch.tensor(0.25))
    assert torch.equal(its_optimizer.param_groups[0]["a/name/with/slashes"], torch.tensor(0.5))
    assert its_optimizer.param_groups[0]["betas"] == (0.9, 0.999)


# ----------------------------------------------------------------------------------------- what comes back and what not


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ((1, 28, 28), r"\['it'\] would not come back equal: \(1, 28, 28\) as \[1, 28, 28\]"),
        (torch.Size([3]), r"would not come back equal"),
        ({1: 2}, r"\['it'\] has the key 1, and JSON gives back strings; give it as '1'"),
        ({"deep": [{"er": (1,)}]}, r"\['it'\]\['deep'\] would not come back equal"),
        (float("nan"), "would not come back equal: nan"),
        ({1, 2}, "is nothing that JSON holds"),
        (torch.ones(2), "is nothing that JSON holds"),
    ],
)
@pytest.mark.parametrize("where", ["identity", "more"])
def test_what_json_would_change_is_refused_when_it_is_saved(tmp_path, value, says, where):
    path = tmp_path / "s.npz"
    model, optimizer = two_alike()
    save_state(path, model, optimizer, {}, step=1)
    identity, more = ({"it": value}, {}) if where == "identity" else ({}, {"it": value})
    with pytest.raises(ValueError, match=where + ".*" + says):
        save_state(path, model, optimizer, identity, **more)
    assert load_state(path, model, optimizer, {}) == {"step": 1}  # the old file is as it was


@pytest.mark.parametrize("value", [None, True, -0.0, 1e300, "ü", [], {}, [1, [2.5, None]], {"a": {"b": [1]}}])
def test_what_json_keeps_comes_back_equal(tmp_path, value):
    model, optimizer = two_alike()
    save_state(tmp_path / "s.npz", model, optimizer, {"it": value}, it=value)
    assert load_state(tmp_path / "s.npz", model, optimizer, {"it": value}) == {"it": value}


def test_conjugated_negated_and_complex_buffers_come_back(tmp_path):
    def model():
        made = torch.nn.Linear(1, 1)
        made.register_buffer("conjugated", torch.zeros(2, dtype=torch.complex64))
        made.register_buffer("negated", torch.zeros(2))
        return made

    one = model()
    one.conjugated = torch.tensor([1 + 2j, 3j]).conj()
    one.negated = torch.tensor([1 + 2j, 3j]).conj().imag
    assert one.conjugated.is_conj()
    assert one.negated.is_neg()
    save_state(tmp_path / "s.npz", one, torch.optim.SGD(one.parameters()), {})
    other = model()
    load_state(tmp_path / "s.npz", other, torch.optim.SGD(other.parameters()), {})
    assert other.conjugated.tolist() == [1 - 2j, -3j]
    assert other.negated.tolist() == [-2, -3]


def test_a_sparse_buffer_is_refused_by_name(tmp_path):
    model, optimizer = two_alike()
    model.register_buffer("edges", torch.eye(3).to_sparse())
    refuses(ValueError, "model/edges can't be saved: .*sparse", save_state, tmp_path / "s.npz", model, optimizer, {})


class Counts(torch.nn.Linear):
    """Keeps a state that is no tensor, and refuses a negative one."""

    counted = 0

    def get_extra_state(self):
        return {"counted": self.counted}

    def set_extra_state(self, state):
        if state["counted"] < 0:
            raise RuntimeError("counted below zero")
        self.counted = state["counted"]


def test_a_modules_own_state_comes_back(tmp_path):
    model = Counts(3, 3)
    model.counted = 7
    save_state(tmp_path / "s.npz", model, torch.optim.SGD(model.parameters()), {})
    other = Counts(3, 3)
    load_state(tmp_path / "s.npz", other, torch.optim.SGD(other.parameters()), {})
    assert other.counted == 7


def test_a_module_that_refuses_its_own_state_leaves_all_as_it_was(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), Counts(3, 3))
    model[1].counted = -1
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    save_state(tmp_path / "s.npz", model, optimizer, {})
    other = torch.nn.Sequential(torch.nn.Linear(3, 3), Counts(3, 3))
    other[1].counted = 5
    its_optimizer = torch.optim.Adam(other.parameters())
    before = weights(other)
    refuses(RuntimeError, "counted below zero", load_state, tmp_path / "s.npz", other, its_optimizer, {})
    assert equal(weights(other), before)
    assert other[1].counted == 5
    assert not its_optimizer.state


def test_moments_of_a_parameter_that_is_not_there_are_refused(tmp_path):
    path = tmp_path / "s.npz"
    model, optimizer = two_alike()
    save_state(path, model, optimizer, {})
    tensors, values = read_state_file(path)
    write_state_file(path, {**tensors, "optimizer/9/exp_avg": torch.zeros(3)}, values)
    refuses(ValueError, "moments of parameter 9, and the optimizer has 4", load_state, path, model, optimizer, {})


class Averages(torch.optim.Optimizer):
    """An optimizer that keeps, of each parameter, a number that is no tensor."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            own = self.state[parameter]
            own["step"] = own.get("step", 0) + 1
            parameter -= self.param_groups[0]["lr"] / own["step"] * parameter.grad


def test_what_an_optimizer_keeps_as_plain_numbers_comes_back(tmp_path):
    model, optimizer = two_alike(optimizer_of=Averages, steps=3)
    save_state(tmp_path / "s.npz", model, optimizer, {})
    other, its_optimizer = two_alike(optimizer_of=Averages, steps=1)
    load_state(tmp_path / "s.npz", other, its_optimizer, {})
    assert everything(other, its_optimizer) == everything(model, optimizer)


@pytest.mark.parametrize("larger", ["saved", "here"])
def test_a_buffer_that_only_one_model_has_is_named(tmp_path, larger):
    models = {"saved": torch.nn.Linear(3, 3), "here": torch.nn.Linear(3, 3)}
    models[larger].register_buffer("further", torch.ones(2))
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    save_state(tmp_path / "s.npz", models["saved"], optimizers["saved"], {})
    before = weights(models["here"])
    there, here = ("has shape", "is not") if larger == "saved" else ("is not", "has shape")
    says = f"another model: further {there}.* in the file and {here}.* here"
    refuses(ValueError, says, load_state, tmp_path / "s.npz", models["here"], optimizers["here"], {})
    assert equal(weights(models["here"]), before)


@pytest.mark.parametrize("part", ["identity", "more", "parameters", "groups", "extra", "moments"])
def test_a_file_without_one_of_its_parts_is_no_state(tmp_path, part):
    path = tmp_path / "s.npz"
    save_state(path, *two_alike(), {})
    with np.load(path) as file:
        arrays = dict(file)
    values = json.loads(str(arrays["json"]))
    del values[part]
    np.savez(path, **{**arrays, "json": np.array(json.dumps(values))})
    model, optimizer = two_alike(steps=1)
    before = everything(model, optimizer)
    says = f"no training state .KeyError: '{part}'.; remove it to begin anew"
    refuses(ValueError, says, load_state, path, model, optimizer, {})
    assert everything(model, optimizer) == before
