"""torchrun whose store listens on this machine only: `python -m lib.training.loopback` takes torchrun's arguments.

The ranks find each other through a store, a small server in torchrun's agent. As it comes, that server

    listens on every network interface      here: on 127.0.0.1, for the ranks run on this machine
    asks for a port that was free before    here: binds to port 0, so that nobody can come between
    is the same after a restart             here: a new one each time: since torch 2.13 the addresses of the dead ranks
                                            would be taken for those of the new ones, "Connection refused"

torchrun has a place for this, the rendezvous backend: where agents meet. This is one more; all else is torchrun's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic import rendezvous
from torch.distributed.elastic.multiprocessing import api as multiprocessing
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from lib.memory import import_psutil

HOST = "127.0.0.1"
PR_SET_CHILD_SUBREAPER = 36  # prctl(2): who loses its parent below this process becomes its child


class Loopback(StaticTCPRendezvous):
    """Let one agent meet itself: rank 0 of 1, as in torch's static way, with a new store for each attempt."""

    def __init__(self, parameters: rendezvous.RendezvousParameters) -> None:
        if parameters.max_nodes != 1:
            raise ValueError(f"this rendezvous is for one machine, not {parameters.max_nodes}")
        super().__init__(HOST, 0, rank=0, world_size=1, run_id=parameters.run_id, timeout=60)
        self._stores: list[TCPStore] = []  # an agent's exit still asks the store of its attempt

    def get_backend(self) -> str:
        """Name this backend."""
        return "loopback"

    def next_rendezvous(self) -> rendezvous.RendezvousInfo:
        """Open a store on a free port and say where it is; called for the first attempt and for each restart."""
        with socket.create_server((HOST, 0)) as server:
            port = server.getsockname()[1]
            store = TCPStore(
                HOST,
                port,
                is_master=True,
                timeout=self.timeout,
                wait_for_workers=False,
                master_listen_fd=server.fileno(),
                use_libuv=False,  # that store takes no open socket before torch 2.7, and Windows has none
            )
            server.detach()  # the store closes it
        self._stores.append(store)
        info = rendezvous.RendezvousStoreInfo(HOST, port)
        return rendezvous.RendezvousInfo(PrefixStore(self.run_id, store), 0, 1, info)


# ---- half a word


class _Failure(ProcessFailure):
    """How a rank ended, also one that was ended while it wrote its error file: torch's raises at half a file.

    The agent would fail with that, and nobody would hear how the other ranks ended.
    """

    def __post_init__(self) -> None:
        try:
            super().__post_init__()  # type: ignore[no-untyped-call]
        except (OSError, ValueError, LookupError, TypeError):
            self.error_file = ""  # as if there were none
            super().__post_init__()  # type: ignore[no-untyped-call]


# ---- nobody stays


def _stay_above() -> None:
    """Leave this process above the agent, which the caller becomes, until nobody is left below.

        launcher ── this process ── agent ──┬── rank 0 ── …
                                            └── rank 1 ── …

    An agent that is killed can't end anybody, and whoever has cleared its environment and lost its parents is known by
    nothing but the ancestor that Linux gives it: this process.
    """
    launcher = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    agent = os.fork()
    if agent == 0:
        return
    signal.signal(signal.SIGTERM, lambda *_: _ask_to_end(agent))
    threading.Thread(target=_end_without, args=(launcher, agent), daemon=True).start()
    pid = status = 0
    while pid != agent:  # others are orphans that have ended by themselves
        pid, status = os.waitpid(-1, 0)
    _end_orphans()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # end as the agent has ended: the launcher tells by what
        with contextlib.suppress(OSError):  # SIGKILL is nothing that one could mind
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _end_orphans() -> None:
    """End what is left below: who has lost its parent is our child now."""
    psutil = import_psutil("torchrun")
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            os.waitpid(-1, 0)


def _ask_to_end(agent: int) -> None:
    """Ask the agent to end; it ends its ranks first."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(agent, signal.SIGTERM)


def _end_without(parent: int, agent: int) -> None:
    """Ask the agent to end when this process has lost its parent: a notebook's kernel that was restarted."""
    while os.getppid() == parent:
        time.sleep(1)
    _ask_to_end(agent)


if __name__ == "__main__":
    from torch.distributed.run import main

    if sys.platform == "linux":  # elsewhere, whoever has started us finds orphans by their environment
        _stay_above()
    threading.Thread(target=_end_without, args=(os.getppid(), os.getpid()), daemon=True).start()
    rendezvous.rendezvous_handler_registry.register("loopback", Loopback)
    multiprocessing.ProcessFailure = _Failure  # type: ignore[attr-defined]  # where the agent looks for it
    code = 0
    try:
        main()
    except Exception:  # as Python would, but for taking torch down, which takes half a second
        traceback.print_exc()
        code = 1
    _end_orphans()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
