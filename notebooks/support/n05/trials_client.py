"""What a server's client does when it is tried: a function says what is wrong with an answer, "" if nothing."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch.utils.data import DataLoader

from lib.data import MetaServer
from support.kit.raised import in_case
from support.n05.trials import ROWS, difference_told, rows_fault


class _Counted:
    """Rows that a MetaServer serves, and who asked for which: it has a thread for each connection."""

    def __init__(self) -> None:
        self.asked: list[threading.Thread] = []
        self.given: list[int] = []

    def __len__(self) -> int:
        return len(ROWS)

    def rows(self, ids: Sequence[int]) -> list[str]:
        self.asked.append(threading.current_thread())
        self.given += ids
        return [ROWS[index] for index in ids]


def fault_of_client(make: Any) -> str:
    """Ask a server for rows and batches, for too many and for what is not there, and from a forked worker."""
    rows = _Counted()
    with MetaServer(rows) as server, in_case(f"for a server of {len(ROWS)} rows"):
        dataset = make(server.host, server.port)
        return (
            rows_fault(dataset, "dataset")
            or _fault_of_requests(dataset, rows)
            or _fault_of_complaints(dataset)
            or _fault_of_connections(dataset, rows)
        )


def _fault_of_requests(dataset: Any, server: _Counted) -> str:
    """Say whether what was asked of the server is what was wanted; all rows have been, one by one."""
    batch = [3, 0, 3]
    asked = server.asked
    single = [*range(len(ROWS))]
    if server.given != single:
        return f"for the rows {single}, one by one, the server had to give the rows {server.given}."
    before = len(asked)
    wanted = [ROWS[number] for number in batch]
    fault = difference_told(dataset.__getitems__(batch), wanted, f"dataset.__getitems__({batch})")
    if fault:
        return fault
    if len(asked) != before + 1:
        return f"for a batch of 3 rows the server had {len(asked) - before} requests: send one POST /rows."
    given = server.given[len(ROWS) :]
    if set(given) != set(batch):
        return f"for the batch {batch} the server had to give the rows {given}."
    dataset[0]
    if len(asked) != before + 2:
        return "dataset[0], asked a second time, was not asked of the server."
    return ""


def _fault_of_complaints(dataset: Any) -> str:
    """Say whether a status of 404 and one of 413 are raised, and the connection can still be used."""
    beyond = len(ROWS)
    there = f"there are {beyond} rows, and dataset[{beyond}]"
    try:
        return f"{there} gives {dataset[beyond]!r}, not an IndexError."
    except IndexError:
        pass
    except Exception as error:
        return f"{there} raises {type(error).__name__}, not an IndexError."
    with suppress(Exception):  # whatever it raises, it has noticed
        got = dataset.__getitems__([0] * 65_537)
        if len(got) != 65_537:
            return f"one request for 65,537 rows is answered with the status 413, and you return {got}."
    try:
        dataset[0]
    except http.client.HTTPException as error:
        return f"the request after a status of 404 or 413 fails with {type(error).__name__}."
    return ""


def _fault_of_connections(dataset: Any, server: _Counted) -> str:
    asked = server.asked
    if len(set(asked)) > 1:
        return f"for {len(asked)} requests you connected {len(set(asked))} times."
    loader: Any = DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context="fork", timeout=20)
    fault = difference_told([row for batch in loader for row in batch], ROWS, "what a forked worker reads")
    if fault:
        return fault
    return "" if len(set(asked)) == 2 else "a forked worker asked through its parent's connection."
