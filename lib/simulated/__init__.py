"""A GPU in every laptop: a torch device on which streams really run, copies take time, and memory is given away.

    from lib.simulated import Kernel, Link, start

    start(count=2, kernel=Kernel(seconds=1e-3), host_link=Link(bandwidth=1e8))
    x = torch.randn(1024, 1024).pin_memory()
    side = torch.Stream("simgpu")
    with side:
        y = x.to("simgpu", non_blocking=True)      # on its way: 42 ms at 100 MB/s
    print(y.sum())                                 # nan: nobody has waited for it

A stream is a thread; a kernel is the CPU's, run there, as long as the modelled time says. Order comes from streams,
events and the host alone: a forgotten wait gives wrong numbers. A number of a simulated device is never a GPU's: it
shows what the host, hand-overs, waits, messages and memory cost, and never which schedule wins on a GPU. Not modelled:
contention of kernels for the cores of a GPU, limits of launches, TF32, cuDNN, the staging of pageable memory in pieces;
sparse, nested and quantized tensors are refused.
"""

from lib.simulated.build import BuildError
from lib.simulated.modelled_time import Kernel, Link
from lib.simulated.simgpu import sleep
from lib.simulated.starting import Counters, counters, profile, start, stop

__all__ = ["BuildError", "Counters", "Kernel", "Link", "counters", "profile", "sleep", "start", "stop"]
