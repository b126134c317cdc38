"""An accelerator that is not there, for what lib does with devices beyond the CPU."""

import contextlib
import inspect
from types import SimpleNamespace

import torch

from lib.timeline import Recorder


class FakeAccelerator:
    """Two devices of a kind that torch knows by name only; work is done later than it is launched.

    Their functions stand where torch looks for those of any backend: in a module of its own. They may be called as
    those of torch.cuda may: arguments that torch's signatures don't take are an error. Each device has one stream, and
    its clock started 100 s before the host's.
    """

    def __init__(self, monkeypatch):
        self.devices = [torch.device("privateuseone", number) for number in range(2)]
        self.device = self.devices[0]
        self.streams = [SimpleNamespace(device=device, wait_event=None) for device in self.devices]
        self.stream = self.streams[0]
        self.host = 10.0
        self.done = 10.0  # when the streams have done what they have got so far
        self.waited = 0  # how often the host did
        self.events = 0
        self.current = 0
        self.bytes = {"active_bytes.all.current": 10, "active_bytes.all.peak": 10, "allocated_bytes.all.peak": 3}
        self.module = SimpleNamespace(
            default_generators=[torch.Generator(), torch.Generator()],
            **{name.removeprefix("on_"): self.held_to_torch(name) for name in dir(self) if name.startswith("on_")},
        )
        monkeypatch.setattr(torch, self.device.type, self.module, raising=False)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(self.device.type))
        torch.get_device_module.cache_clear()  # which remembers the module of an earlier test
        monkeypatch.setattr(Recorder, "now", staticmethod(lambda: self.host))

    def held_to_torch(self, name):
        signature = inspect.signature(getattr(torch.cuda, name.removeprefix("on_")))
        ours = getattr(self, name)

        def call(*args, **kwargs):
            signature.bind(*args, **kwargs)
            return ours(*args, **kwargs)

        return call

    def work(self, seconds):
        """Launch what takes the stream so long."""
        self.done = max(self.host, self.done) + seconds

    def number(self, device):
        """Return the number of a device as torch's functions take it: None is the current one."""
        index = None if device is None else device.index
        return self.current if index is None else index

    # ---- the functions of the module

    def on_is_available(self):
        return True

    def on_is_initialized(self):
        return True

    def on_device_count(self):
        return len(self.devices)

    def on_current_device(self):
        return self.current

    @contextlib.contextmanager
    def on_device(self, device):
        outside = self.current
        self.current = self.number(device)
        yield
        self.current = outside

    def on_Stream(self, device):
        return SimpleNamespace(device=self.devices[self.number(device)])

    def on_Event(self, enable_timing):
        assert enable_timing
        self.events += 1
        return FakeEvent(self)

    @contextlib.contextmanager
    def on_stream(self, stream):
        number = self.number(stream.device)
        outside = self.streams[number]
        self.streams[number] = stream
        yield
        self.streams[number] = outside

    def on_current_stream(self, device):
        return self.streams[self.number(device)]

    def on_default_stream(self, device):
        return self.streams[self.number(device)]

    def on_synchronize(self, device=None):
        self.waited += 1
        self.host = max(self.host, self.done)

    def on_memory_stats(self, device):
        return self.bytes

    def on_reset_peak_memory_stats(self, device):
        self.bytes["active_bytes.all.peak"] = self.bytes["active_bytes.all.current"]


class FakeEvent:
    """An event that notes the time of its stream."""

    def __init__(self, accelerator):
        self.accelerator = accelerator

    def record(self, stream):
        assert stream.device.type == self.accelerator.device.type
        self.at = max(self.accelerator.host, self.accelerator.done)

    def synchronize(self):
        self.accelerator.waited += 1
        self.accelerator.host = max(self.accelerator.host, self.at) + 1e-6

    def elapsed_time(self, later):
        return 1e3 * ((later.at + 100) - (self.at + 100))
