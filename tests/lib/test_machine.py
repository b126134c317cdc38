"""The card of a machine names what a number depends on, and nothing of who uses it."""

import getpass
import os
import platform
from pathlib import Path
from types import SimpleNamespace

import torch

from lib import machine
from lib.machine import machine_card


def test_the_card_names_what_a_number_depends_on():
    card = machine_card()
    assert 1 <= card.cores_usable <= card.cores_logical
    assert card.torch == torch.__version__
    assert card.python == platform.python_version()
    assert card.device == (card.gpu or card.cpu)
    lines = str(card).splitlines()
    assert [line.split()[0] for line in lines] == ["cpu", "gpu", "torch"]
    assert torch.__version__ in lines[2]
    text = str(card)  # gives away no host, no user and no path
    assert not {platform.node(), getpass.getuser()} & {*text.replace(",", " ").split()}
    assert str(Path.home()) not in text
    assert os.sep + "sys" not in text


def test_a_gpu_that_torch_sees_is_on_the_card(monkeypatch):
    properties = SimpleNamespace(name="NVIDIA Test 9000", total_memory=80 * 10**9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(machine, "_driver", lambda: "570.1")
    card = machine_card()
    assert card.device == "NVIDIA Test 9000"
    assert "gpu    NVIDIA Test 9000, 80.0 GB, driver 570.1, CUDA 12.8" in str(card)


def test_a_container_that_may_use_fewer_cores_says_so(monkeypatch):
    def quota(text):
        monkeypatch.setattr(Path, "read_text", lambda self: text)
        return machine.usable_cores()

    free = quota("max 100000")
    assert free == quota("not what we expect")
    assert quota("100000 100000") == 1
    assert quota("50000 100000") == 1, "half a core is still a core to run on"
    assert quota(f"{100 * free * 100000} 100000") == free
