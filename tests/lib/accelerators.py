"""An accelerator that is not there, for what lib does with devices beyond the CPU."""

import contextlib
import inspect
from types import SimpleNamespace

import torch

from lib.timeline import Recorder


class FakeAccelerator:
    """A device whose stream does its work later than it is launched; its clock started 100 s before the host's.

    Its functions stand where torch looks for those of any backend, in a module of its own; there is no CUDA in it. They
    may be called as those of torch.cuda: arguments that torch's signatures don't take are an error.
    """

    def __init__(self, monkeypatch):
        self.device = torch.device("privateuseone", 0)
        self.stream = SimpleNamespace(device=self.device)
        self.host = 10.0
        self.done = 10.0  # when the stream has done what it has got so far
        self.waited = 0
        self.events = 0
        names = ("Stream", "Event", "synchronize", "device", "current_stream")
        self.module = SimpleNamespace(**{name: self.held_to_torch(name) for name in names})
        monkeypatch.setattr(torch, self.device.type, self.module, raising=False)
        torch.get_device_module.cache_clear()  # which remembers the module of an earlier test
        monkeypatch.setattr(Recorder, "now", staticmethod(lambda: self.host))

    def held_to_torch(self, name):
        signature = inspect.signature(getattr(torch.cuda, name))
        ours = getattr(self, f"_{name}")

        def call(*args, **kwargs):
            signature.bind(*args, **kwargs)
            return ours(*args, **kwargs)

        return call

    def work(self, seconds):
        """Launch what takes the stream so long."""
        self.done = max(self.host, self.done) + seconds

    def _Stream(self, device):
        return self.stream

    def _Event(self, enable_timing):
        assert enable_timing
        self.events += 1
        return FakeEvent(self)

    def _synchronize(self, device):
        assert device == self.device
        self.waited += 1
        self.host = max(self.host, self.done)

    def _device(self, device):
        assert device == self.device
        return contextlib.nullcontext()

    def _current_stream(self, device):
        assert device == self.device
        return self.stream


class FakeEvent:
    def __init__(self, accelerator):
        self.accelerator = accelerator

    def record(self, stream):
        assert stream is self.accelerator.stream
        self.at = max(self.accelerator.host, self.accelerator.done)

    def synchronize(self):
        self.accelerator.waited += 1
        self.accelerator.host = max(self.accelerator.host, self.at) + 1e-6

    def elapsed_time(self, later):
        return 1e3 * ((later.at + 100) - (self.at + 100))
