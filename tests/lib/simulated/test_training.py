"""Models of many kinds train there as on the CPU: recurrent ones, attention, convolutions, optimizers, autocast."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

CPU = "cpu"
SIMULATED = "simgpu"


class Tagger(nn.Module):
    """Words in, a class for each: an embedding, something recurrent, a linear layer."""

    def __init__(self, recurrent):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.recurrent = recurrent
        self.classes = nn.LazyLinear(3)

    def forward(self, x):
        return self.classes(self.recurrent(self.words(x))[0])


class Stepwise(nn.Module):
    """A cell called step by step, as nn.LSTM and nn.GRU call theirs."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state = None
        states = []
        for step in x.unbind(1):
            state = self.cell(step, state)
            states.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(states, 1), state


RECURRENT = {
    "LSTM": lambda: nn.LSTM(4, 5, batch_first=True),
    "LSTM of two layers, both ways": lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True),
    "LSTM without bias": lambda: nn.LSTM(4, 5, bias=False, batch_first=True),
    "LSTM projected": lambda: nn.LSTM(4, 5, proj_size=3, batch_first=True),
    "GRU": lambda: nn.GRU(4, 5, batch_first=True),
    "GRU of two layers, both ways": lambda: nn.GRU(4, 5, num_layers=2, bidirectional=True, batch_first=True),
    "GRU without bias": lambda: nn.GRU(4, 5, bias=False, batch_first=True),
    "LSTMCell": lambda: Stepwise(nn.LSTMCell(4, 5)),
    "GRUCell": lambda: Stepwise(nn.GRUCell(4, 5)),
    "RNNCell": lambda: Stepwise(nn.RNNCell(4, 5)),
}


def twins(model):
    return model, copy.deepcopy(model).to(SIMULATED)


def assert_equal(ours, theirs):
    torch.testing.assert_close([x.detach().cpu() for x in ours], [x.detach() for x in theirs])


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_model_trains_as_on_the_cpu(device, name):
    model = Tagger(RECURRENT[name]()).double()
    words = torch.randint(7, (6, 5))
    classes = torch.randint(3, (6, 5))
    model(words)
    plain, moved = twins(model)
    for trained, place in ((plain, CPU), (moved, SIMULATED)):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(trained(words.to(place)).flatten(0, 1), classes.flatten().to(place))
            loss.backward()
            optimizer.step()
    assert_equal(moved.parameters(), plain.parameters())


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_the_gradient_of_a_gradient_of_a_recurrent_cell_is_that_of_the_cpu(device, name):
    found = []
    plain, moved = twins(RECURRENT[name]().double())
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    for model, place in ((plain, CPU), (moved, SIMULATED)):
        inputs = x.to(place).requires_grad_()
        (first,) = torch.autograd.grad(model(inputs)[0].square().sum(), inputs, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), list(model.parameters())))
    assert_equal(found[1], found[0])


def test_a_packed_sequence_gives_what_it_gives_on_the_cpu(device):
    plain, moved = twins(nn.LSTM(4, 5))
    x = torch.randn(6, 3, 4)
    found = []
    for model, place in ((plain, CPU), (moved, SIMULATED)):
        packed = nn.utils.rnn.pack_padded_sequence(x.to(place), [6, 4, 1])
        padded, lengths = nn.utils.rnn.pad_packed_sequence(model(packed)[0])
        assert lengths.tolist() == [6, 4, 1]
        found.append(padded)
    assert_equal(found[1:], found[:1])


def attention():
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def convolution():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())


LAYERS = {
    "attention": (attention, (3, 5, 8)),
    "decoder": (lambda: nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True), (3, 5, 8)),
    "convolution and batch norm": (convolution, (4, 2, 8, 8)),
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_gives_the_outputs_the_gradients_and_the_buffers_of_the_cpu(device, name, mode):
    make, shape = LAYERS[name]
    plain, moved = twins(make().double())
    x = torch.randn(shape, dtype=torch.float64)
    found = []
    for model, place in ((plain, CPU), (moved, SIMULATED)):
        model.train(mode == "train")
        arguments = [x.to(place)] * (2 if name == "decoder" else 1)
        output = model(*arguments)
        output.square().sum().backward()
        found.append([output, *(parameter.grad for parameter in model.parameters()), *model.buffers()])
        with torch.no_grad():  # attention has a fast path for this
            found[-1].append(model(*arguments))
    assert_equal(found[1], found[0])


def test_bags_of_words_give_what_they_give_on_the_cpu(device):
    words = torch.randint(9, (12,))
    offsets = torch.tensor([0, 3, 3, 8])
    for how in ("sum", "mean", "max"):
        plain, moved = twins(nn.EmbeddingBag(9, 4, mode=how))
        found = []
        for model, place in ((plain, CPU), (moved, SIMULATED)):
            output = model(words.to(place), offsets.to(place))
            output.square().sum().backward()
            found.append([output, model.weight.grad])
        assert_equal(found[1], found[0])


OPTIMIZERS = {
    "SGD": lambda p, **how: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, **how),
    "Adam": lambda p, **how: torch.optim.Adam(p, lr=0.1, amsgrad=True, **how),
    "AdamW": lambda p, **how: torch.optim.AdamW(p, lr=0.1, **how),
}


HOW = {"default": {}, "foreach": {"foreach": True}, "one by one": {"foreach": False}, "fused": {"fused": True}}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_steps_as_on_the_cpu(device, name, how):
    plain, moved = twins(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double())
    x = torch.randn(5, 3, dtype=torch.float64)
    for model, place in ((plain, CPU), (moved, SIMULATED)):
        optimizer = OPTIMIZERS[name](model.parameters(), **HOW[how])
        for _ in range(4):
            optimizer.zero_grad()
            model(x.to(place)).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    assert_equal(moved.parameters(), plain.parameters())


def test_autocast_gives_what_its_casts_give_on_the_cpu(device):
    layer = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    plain, moved = twins(layer)
    x = torch.randn(6, 4)
    found = []
    for model, place in ((plain, CPU), (moved, SIMULATED)):
        with torch.autocast(place, torch.bfloat16):
            output = model(x.to(place))
            loss = F.mse_loss(output, torch.zeros_like(output))
        loss.backward()
        found.append([output.float(), *(parameter.grad for parameter in model.parameters())])
        assert output.dtype == torch.bfloat16
    torch.testing.assert_close([y.detach().cpu() for y in found[1]], found[0], rtol=0.05, atol=0.02)


def test_autocast_with_a_scaler_of_gradients_trains(device):
    layer = nn.Linear(4, 1).to(SIMULATED)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(SIMULATED, init_scale=1024.0)
    x = torch.ones(3, 4, device=SIMULATED)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast(SIMULATED, torch.float16):
            loss = layer(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
