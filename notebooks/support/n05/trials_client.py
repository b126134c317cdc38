"""What a server's client does when it is tried: a function says what is wrong with an answer, "" if nothing."""

from __future__ import annotations

import http.client
import multiprocessing
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any
from unittest import mock

from torch.utils.data import DataLoader

from lib.data import MetaServer, meta_answers
from lib.data.meta_answers import RefusedError
from support.kit.raised import Finding, in_case
from support.kit.values import kind_of
from support.n05.trials import ROWS, difference_told, is_kept, rows_fault


class _Counted:
    """Rows that a MetaServer serves, and who asked for which: it has a thread for each connection."""

    def __init__(self, size: int, row: Callable[[int], str]) -> None:
        self.size = size
        self.row = row
        self.asked: list[list[int]] = []
        self.requests: list[str] = []  # all of them, as "GET /len", while _requests_noted
        self.connected: set[threading.Thread] = set()
        self.refusal: tuple[int, str] | None = (
            None  # with what every request is refused, while _requests_noted
        )

    def __len__(self) -> int:
        if threading.current_thread().daemon:  # one of the server's, not ours
            self.connected.add(threading.current_thread())
        return self.size

    def rows(self, ids: Sequence[int]) -> list[str]:
        self.connected.add(threading.current_thread())
        self.asked.append([*ids])
        return [self.row(index) for index in ids]


@contextmanager
def _requests_noted() -> Iterator[None]:
    """Let each _Counted know of every request that its server answers, and refuse it."""

    def noting(rows: Any, stamp: str, command: str, path: str, *more: Any) -> Any:
        rows.requests.append(f"{command} {path}")
        if rows.refusal:
            status, kind = rows.refusal
            raise RefusedError(status, "not now", kind)
        return meta_answers.answer(rows, stamp, command, path, *more)

    with mock.patch("lib.data.meta_server.answer", noting):
        yield


def fault_of_client(make: Any) -> str:
    """Ask a server for rows and batches, for too many and for what is not there, and from a forked worker."""
    rows = _Counted(len(ROWS), ROWS.__getitem__)
    with _requests_noted(), MetaServer(rows) as place, in_case(f"for a server of {len(ROWS)} rows"):
        dataset = make(place.host, place.port)
        fault = (
            rows_fault(dataset, "dataset")
            or _fault_of_requests(dataset, rows)
            or _fault_of_connections(dataset, rows)
            or _fault_of_kept_rows(dataset)
            or _fault_of_other_batches(dataset)
            or _fault_of_refusals(lambda: make(place.host, place.port), rows)
        )
        return fault or _fault_of_two_servers(make) or _fault_of_host(lambda: make("::1", place.port))


def _fault_of_requests(dataset: Any, server: _Counted) -> str:
    """Say whether what was asked of the server is what was wanted; all rows have been, one by one."""
    batch = [3, 0, 3, 1, 0, 4, 3, 1, 0]
    asked = server.asked
    single = [*range(len(ROWS))]
    given = [index for ids in asked for index in ids]
    if given != single:
        return f"for the rows {single}, one by one, the server had to give the rows {given}."
    before = len(asked)
    wanted = [ROWS[number] for number in batch]
    fault = difference_told(dataset.__getitems__([*batch]), wanted, f"dataset.__getitems__({batch})")
    if fault:
        return fault
    if len(asked) != before + 1:
        return f"for a batch of {len(batch)} rows the server had {len(asked) - before} requests: send one POST /rows."
    if set(asked[-1]) != {*batch}:
        return f"for the batch {batch} the server had to give the rows {asked[-1]}."
    dataset[0]
    if len(asked) != before + 2:
        return "dataset[0], asked a second time, was not asked of the server."
    return ""


def _fault_of_kept_rows(dataset: Any) -> str:
    if is_kept(lambda: dataset[3]) or is_kept(lambda: dataset.__getitems__([3, 1])[0]):
        return "the string of row 3 is kept somewhere after it has come: keep no row."
    dataset[3]
    if ROWS[3].split()[0] in repr(getattr(dataset, "__dict__", "")):  # as bytes, too
        return "row 3 stands in an attribute after it has come: keep no row."
    return ""


def _fault_of_other_batches(dataset: Any) -> str:
    """Ask for row 0 alone, and for a batch whose answer is longer than what is often read at a time."""
    fault = difference_told(dataset.__getitems__([0]), ROWS[:1], "dataset.__getitems__([0])")
    if fault:
        return fault
    batch = [*range(len(ROWS))] * 800  # more than 64 kB
    case = f"for a batch of {len(batch):,} rows"
    with in_case(case):
        got = dataset.__getitems__([*batch])
    return "" if got == [ROWS[number] for number in batch] else f"{case}, other rows come, or not so many."


def _fault_of_host(new: Callable[[], Any]) -> str:
    """Say whether a client answers for a host at which no server listens."""
    try:
        got = new()[3]
    except Exception:
        return ""
    return f"no server listens at the host ::1, and a client of it gives {got!r}: it asks another one."


#: On a busy machine an answer may come later than a client waits for it: what is wrong with a client is so each time.
_TRIES = 3


def _fault_of_refusals(new: Callable[[], Any], server: _Counted) -> str:
    """Let a client be refused, and then a new one, until one is without fault: a late answer is nobody's."""
    fault = ""
    for _ in range(_TRIES):
        server.connected.clear()
        dataset = new()
        fault = _fault_of_complaints(dataset, server) or _fault_of_statuses(dataset, server)
        if not fault and len(server.connected) > 1:
            fault = f"where the server has refused something, you connect anew: {len(server.connected)} connections."
        if not fault:
            return ""
    return fault


def _fault_of_complaints(dataset: Any, server: _Counted) -> str:
    """Say whether a status of 404 and one of 413 are raised and told apart, and the connection can still be used."""
    beyond = len(ROWS)
    for indices in ([beyond], [0, beyond]):
        single = len(indices) == 1
        there = f"there are {beyond} rows, and dataset" + (
            f"[{beyond}]" if single else f".__getitems__({indices})"
        )
        try:
            got = dataset[beyond] if single else dataset.__getitems__(indices)
            return f"{there} gives {got!r}, not an IndexError."
        except IndexError:
            pass
        except Exception as error:
            return f"{there} raises {type(error).__name__}, not an IndexError."
    many = "one request for 65,537 rows is answered with the status 413, and you"
    server.requests.clear()
    try:
        got = dataset.__getitems__([0] * 65_537)
    except IndexError:
        return f"{many} raise an IndexError, which says that there is no such row: only 404 does."
    except StopIteration:
        return f"{many} raise StopIteration, which ends the loop around it without a word."
    except Exception:  # whatever it raises, it has noticed
        pass
    else:
        if not isinstance(got, list) or len(got) != 65_537:
            return f"{many} return {got!r}."
        sent = server.requests.count("POST /rows")
        if sent != 1:
            return f"for a batch of 65,537 rows the server had {sent} requests: send one POST /rows."
    try:
        dataset[0]
    except http.client.HTTPException as error:
        return f"the request after a status of 404 or 413 fails with {type(error).__name__}."
    return ""


#: What a server may say in place of an answer: the status, and what it calls its error.
_REFUSALS = (
    (202, "OSError"),
    (404, "KeyError"),
    (413, "OSError"),
    (500, "IndexError"),
    (503, "StopIteration"),
)


def _fault_of_statuses(dataset: Any, server: _Counted) -> str:
    """Refuse a row, a batch and the length with each of several statuses: what is raised, how often is it asked for?"""
    asks: dict[str, Callable[[], Any]] = {
        "a row": lambda: dataset[3],
        "a batch of 2 rows": lambda: dataset.__getitems__([3, 1]),
        "the length": lambda: len(dataset),
    }
    for (status, kind), what in product(_REFUSALS, asks):
        case = f"{what} is answered with the status {status} and the error {kind}, and you"
        server.requests.clear()
        server.refusal = status, kind
        raised: type[BaseException] | None = None
        try:
            got = asks[what]()
        except Exception as error:
            raised = type(error)
        finally:
            server.refusal = None
        if what == "the length" and not server.requests:
            continue  # it is kept
        if raised is None:
            return f"{case} return {got!r}: every status but 200 must raise."
        if issubclass(raised, StopIteration) or issubclass(raised, IndexError) != (status == 404):
            return f"{case} raise {raised.__name__}: 404 is an IndexError, no other one is, and none ends a loop."
        if len(server.requests) != 1:
            return f"{case} ask {len(server.requests)} times: each is one request."
    return ""


def _fault_of_connections(dataset: Any, server: _Counted) -> str:
    connected = server.connected
    if len(connected) > 1:
        return f"for {len(server.requests)} requests you connected {len(connected)} times."
    loader: Any = DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context="fork", timeout=20)
    fault = difference_told([row for batch in loader for row in batch], ROWS, "what a forked worker reads")
    if fault or len(connected) == 2:
        return fault
    if len(connected) < 2:
        return "a forked worker asked through its parent's connection."
    return f"a forked worker connected {len(connected) - 1} times for 3 batches."


# ---- two servers, asked in turn, for rows of which some lie beyond 32 bits; in this process, then in a forked one

_SIZES = (7, 2**33 + 5)


def _fault_of_two_servers(make: Any) -> str:
    """Ask two servers in turn for random rows and batches, often twice for the same, here and in a forked process."""
    served = [_Counted(size, (f"row {{}} of {size:,}, no error, é犬 ").format) for size in _SIZES]
    own: list[set[threading.Thread]] = []  # of each server, our process's connection
    with ExitStack() as stack:
        servers = [stack.enter_context(MetaServer(rows)) for rows in served]
        with in_case(f"for two servers, of {_SIZES[0]} and {_SIZES[1]:,} rows"):
            datasets = [make(server.host, server.port) for server in servers]
        for number, (where, first, ask) in enumerate(_PHASES):
            questions = [*_questions(random.Random(number), first)]
            for rows in served:
                rows.connected.clear()
                rows.requests.clear()
            before = [len(rows.asked) for rows in served]
            with in_case(f"{where}for two servers, of {_SIZES[0]} and {_SIZES[1]:,} rows"):
                got = ask(datasets, questions)
            fault = _fault_of_answers(where, questions, got, served, before)
            if fault:
                return fault
            own = own or [{*rows.connected} for rows in served]
            for ours, rows in zip(own, served, strict=True):
                fault = _fault_of_owner(where, ours, rows.connected)
                if fault:
                    return fault
    return ""


def _fault_of_owner(where: str, ours: set[threading.Thread], used: set[threading.Thread]) -> str:
    """Say whether a process has used more than one connection to a server, or one of another process."""
    forked = "forked" in where
    processes = 1 + ("forked from it" in where)
    if forked and (ours & used or len(used) < processes):
        return f"{where}a row, a batch or the length was asked for through the parent's connection."
    if len(used) > processes:
        return f"{where}{len(used)} connections to one server are used, not one that is kept."
    return "" if forked or used == ours else f"{where}the connection of before is not used any more."


def _questions(generator: random.Random, first: str) -> Iterator[tuple[int, Any]]:
    """Yield which server is asked and for what: its length, a row, or a batch; both for `first` first, much twice."""
    for number in range(24):
        which = generator.randrange(2) if number > 1 else number
        kind = generator.choice(("length", "row", "row", "batch", "batch")) if number > 1 else first
        rows = [
            generator.randrange(_SIZES[which])
            for _ in range(1 if kind == "row" else generator.randrange(1, 200))
        ]
        question = {"length": None, "row": rows[0]}.get(kind, rows)
        yield from [(which, question)] * generator.choice((1, 2))


@dataclass(frozen=True)
class _Changed:
    """In place of an answer: the caller's list of indices has changed."""


def _asked(datasets: Sequence[Any], questions: Sequence[tuple[int, Any]]) -> list[Any]:
    """Return the answers; for a batch, of which list they are, if that is another one than before."""
    answers: list[Any] = []
    for which, question in questions:
        if question is None:
            answers.append(len(datasets[which]))
        elif isinstance(question, int):
            answers.append(datasets[which][question])
        else:
            batch = [*question]
            rows = datasets[which].__getitems__(batch)
            answers.append(rows if batch == question else _Changed())
    return answers


def _asked_by_two(datasets: Sequence[Any], questions: Sequence[tuple[int, Any]]) -> list[Any]:
    """Ask one half here and the other in a forked process."""
    half = len(questions) // 2
    return [*_asked(datasets, questions[:half]), *_asked_elsewhere(datasets, questions[half:])]


def _asked_elsewhere(
    datasets: Sequence[Any], questions: Sequence[tuple[int, Any]], ask: Callable[..., list[Any]] = _asked
) -> list[Any]:
    """Ask in a forked process; raises what it raised."""
    context: Any = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def be_worker() -> None:
        try:
            theirs.send(ask(datasets, questions))
        except BaseException as error:
            theirs.send(f"{type(error).__name__}: {error}")

    name = multiprocessing.current_process().name  # it tells nobody that this is another process
    worker = context.Process(target=be_worker, name=name)
    worker.start()
    theirs.close()
    try:
        got = ours.recv() if ours.poll(20) else "no answer came"
    except EOFError:
        got = "it died"
    worker.kill()
    worker.join()
    if isinstance(got, str):
        raise Finding(f"a forked process that asks for rows and batches fails: {got}.")
    return list(got)


#: Where, what is asked for first, and who asks.
_PHASES: tuple[tuple[str, str, Callable[..., list[Any]]], ...] = (
    ("", "row", _asked),
    ("in a forked process ", "row", _asked_elsewhere),
    ("in a forked process ", "length", _asked_elsewhere),
    ("in a forked process and in one forked from it ", "batch", partial(_asked_elsewhere, ask=_asked_by_two)),
    ("afterwards ", "batch", _asked),
)


def _fault_of_answers(
    where: str,
    questions: Sequence[tuple[int, Any]],
    got: Sequence[Any],
    served: Sequence[_Counted],
    before: list[int],
) -> str:
    """Compare answers with the servers' rows, and what these were asked for with the questions."""
    for (which, question), answer in zip(questions, got, strict=True):
        rows = served[which]
        if question is None:
            fault = difference_told(
                answer, rows.size, f"{where}of a server of {rows.size:,} rows, len(dataset)"
            )
        elif isinstance(question, int):
            fault = difference_told(answer, rows.row(question), f"{where}dataset[{question}]")
        elif answer == _Changed():
            return f"{where}after dataset.__getitems__(indices) the caller's list of indices is another one."
        else:
            fault = _fault_of_batch(where, question, answer, rows)
        if fault:
            return fault
    for which, rows in enumerate(served):
        wanted = [
            [asked] if isinstance(asked, int) else asked
            for to, asked in questions
            if to == which and asked is not None
        ]
        came = rows.asked[before[which] :]
        questions_to = sum(to == which for to, _ in questions)
        if len(rows.requests) > questions_to + 1:  # who keeps the length has asked for it once
            kinds = Counter("GET /get/…" if " /get" in request else request for request in rows.requests)
            seen = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            return (
                f"{where}for {questions_to} single rows, batches and lengths the server had {len(rows.requests)} "
                f"requests ({seen}): each is one request."
            )
        if len(came) != len(wanted):
            return (
                f"{where}for {len(wanted)} single rows and batches, some of them twice, the server had {len(came)} "
                "requests: each is one request, and nothing is kept."
            )
        if any(set(one) != set(other) for one, other in zip(came, wanted, strict=True)):
            return f"{where}the server had to give other rows than those of the batch."
    return ""


def _fault_of_batch(where: str, batch: Sequence[int], answer: Any, rows: _Counted) -> str:
    wanted = [rows.row(index) for index in batch]
    if not isinstance(answer, list) or len(answer) != len(wanted):
        return f"{where}a batch of {len(wanted)} rows gives {kind_of(answer)} of {len(answer)}, not a list of as many."
    wrong = next((place for place in range(len(wanted)) if answer[place] != wanted[place]), None)
    if wrong is None:
        return ""
    return difference_told(
        answer[wrong], wanted[wrong], f"{where}of a batch of {len(wanted)} rows, item {wrong}"
    )
