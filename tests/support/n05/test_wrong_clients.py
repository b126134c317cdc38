"""Wrong clients of a server, exercise 6 of notebook 05, that a reader found accepted."""

import pytest

from support.kit.mistakes import famous
from support.n05.checks import check_client

ANSWERS = {  # what is said, (old, new, …)
    "only a batch connects anew in a forked process": (
        "in a forked process",
        (
            "if self.owner != os.getpid():",
            "if not self.owner or (method == 'POST' and self.owner != os.getpid()):",
        ),
    ),
    "a forked process connects anew, and none that it forks": (
        "in a forked process and in one forked from it",
        (
            "if self.owner != os.getpid():",
            "main = self.__dict__.setdefault('main', os.getpid())\n"
            "        if not self.owner or (self.owner == main and main != os.getpid()):",
        ),
    ),
    "a connection for batches": (
        "you connected 2 times",
        (
            'return self.ask("POST", "/rows", ',
            'other = getattr(self, "other", None) or MyServerDataset(*self.address); self.other = other; '
            'return other.ask("POST", "/rows", ',
        ),
    ),
    "batches are kept": (
        "the string of row 3 is kept somewhere",
        (
            "self.address, self.owner =",
            "self.kept = {}; self.address, self.owner =",
            'return self.ask("POST", "/rows", json.dumps([int(index) for index in indices]))',
            "key = tuple(indices)\n        if key not in self.kept:\n"
            '            self.kept[key] = self.ask("POST", "/rows", json.dumps([*key]))\n        return self.kept[key]',
        ),
    ),
    "the last row is kept": (
        "the string of row 3 is kept somewhere",
        (
            "self.address, self.owner =",
            "self.last = None, None; self.address, self.owner =",
            'return self.ask("GET", f"/get/{index}")',
            "if self.last[0] != index: self.last = index, self.ask('GET', f'/get/{index}')\n"
            "        return self.last[1]",
        ),
    ),
    "four rows a request": (
        "for a batch of 9 rows the server had 3 requests",
        (
            'return self.ask("POST", "/rows", json.dumps([int(index) for index in indices]))',
            "return [row for k in range(0, len(indices), 4) "
            'for row in self.ask("POST", "/rows", json.dumps(indices[k : k + 4]))]',
        ),
    ),
    "the caller's indices are sorted, and so are the rows": (
        "dataset.__getitems__([3, 0, 3, 1, 0, 4, 3, 1, 0]) should be",
        ('return self.ask("POST"', 'indices.sort(); return self.ask("POST"'),
    ),
    "the caller's indices are used up": (
        "the caller's list of indices is another one",
        (
            'return self.ask("POST", "/rows", json.dumps([int(index) for index in indices]))',
            "mine = [indices.pop(0) for _ in range(len(indices))]; return self.ask('POST', '/rows', json.dumps(mine))",
        ),
    ),
    "the caller's indices are sorted": (
        "the caller's list of indices is another one",
        (
            'return self.ask("POST", "/rows", json.dumps([int(index) for index in indices]))',
            "asked = [*indices]; indices.sort(); "
            "rows = dict(zip(indices, self.ask('POST', '/rows', json.dumps(indices)))); "
            "return [rows[index] for index in asked]",
        ),
    ),
    "every complaint is an IndexError": (
        "you raise an IndexError, which says that there is no such row: only 404 does",
        ("(IndexError if answer.status == 404 else RuntimeError)", "IndexError"),
    ),
    "a complaint that ends a loop": (
        "you raise StopIteration, which ends the loop around it",
        ("else RuntimeError)", "else StopIteration)"),
    ),
    "the length is asked for with every batch": (
        " GET /len",
        (
            '        return self.ask("POST"',
            "        if max(indices, default=0) >= len(self): raise IndexError(max(indices))\n"
            '        return self.ask("POST"',
        ),
    ),
    "the length is asked for with every row": (
        " GET /len",
        (
            '        return self.ask("GET", f"/get/{index}")',
            '        if index >= len(self): raise IndexError(index)\n        return self.ask("GET", f"/get/{index}")',
        ),
    ),
    "no word of other refusals": (
        "and you return None",
        (
            "        if answer.status != 200:\n"
            '            raise (IndexError if answer.status == 404 else RuntimeError)(value["message"])\n'
            "        return value",
            "        if answer.status == 404:\n            raise IndexError(path)\n"
            "        if answer.status == 200:\n            return value",
        ),
    ),
    "a row that speaks of an error is a complaint": (
        "your code raised RuntimeError",
        (
            "answer.status != 200",
            "not isinstance(value, int) and 'error' in value",
            'value["message"]',
            "path",
        ),
    ),
    "rows without the spaces at their ends": (
        "é犬 '",
        ('return self.ask("GET", f"/get/{index}")', 'return self.ask("GET", f"/get/{index}").strip()'),
    ),
    "a new connection after a complaint": (
        "you connect anew",
        ("        if answer.status != 200:\n", "        if answer.status != 200:\n            self.owner = 0\n"),
    ),
    "always five": ("len(dataset) should be", ('return self.ask("GET", "/len")', "return 5")),
    "one connection for all clients": (
        "for two servers",
        (
            "self.connection, self.owner = http",
            "MyServerDataset.connection, MyServerDataset.owner = http",
            "self.address, self.owner = (host, port), 0",
            "self.address = (host, port)",
            "    def ask(",
            "    owner = 0\n\n    def ask(",
        ),
    ),
    "only what is called an error of the client or the server": (
        "is answered with the status 202",
        ("answer.status != 200", "answer.status >= 400"),
    ),
    "a list of statuses": (
        "is answered with the status 202",
        ("answer.status != 200", "answer.status in (404, 413, 500)"),
    ),
    "what the server calls its error": (
        "is answered with the status",
        (
            "(IndexError if answer.status == 404 else RuntimeError)",
            "getattr(__import__('builtins'), value['error'], RuntimeError)",
        ),
    ),
    "asked once more": (
        "you ask 2 times",
        (
            "    def ask(self",
            "    def ask(self, *request: Any) -> Any:\n        try:\n            return self.once(*request)\n"
            "        except RuntimeError:\n            return self.once(*request)\n\n    def once(self",
        ),
    ),
    "halved where it is too much": (
        "for a batch of 65,537 rows the server had 3 requests",
        (
            'return self.ask("POST", "/rows", json.dumps([int(index) for index in indices]))',
            "try: return self.ask('POST', '/rows', json.dumps([*indices]))\n"
            "        except RuntimeError:\n"
            "            if len(indices) < 2: raise\n"
            "            half = len(indices) // 2\n"
            "            return self.__getitems__(indices[:half]) + self.__getitems__(indices[half:])",
        ),
    ),
    "256 rows a request": (
        "for a batch of 65,537 rows the server had 257 requests",
        (
            'return self.ask("POST", "/rows", json.dumps([int(index) for index in indices]))',
            "return [row for k in range(0, len(indices), 256) "
            'for row in self.ask("POST", "/rows", json.dumps(indices[k : k + 256]))]',
        ),
    ),
    "a length of nothing where the server refuses": (
        "the length is answered with the status 202 and the error OSError, and you return 0",
        (
            'return self.ask("GET", "/len")',
            "try: return self.ask('GET', '/len')\n        except Exception: return 0",
        ),
    ),
    "a connection for each request": (
        "for 8 requests you connected 8 times",
        ("self.owner != os.getpid()", "True"),
    ),
    "the last answer is kept": (
        "is kept somewhere",
        ("        return value", "        self.value = value\n        return value"),
    ),
    "the text of the last answer is kept": (
        "stands in an attribute",
        ("value = json.loads(answer.read())", "self.text = answer.read(); value = json.loads(self.text)"),
    ),
    "an answer is read as from a socket": (
        "for a batch of 4,000 rows: your code raised JSONDecodeError",
        ("answer.read()", "answer.read(1 << 16)"),
    ),
    "always this machine": (
        "asks another one",
        ("self.address, self.owner = (host, port), 0", "self.address, self.owner = ('127.0.0.1', port), 0"),
    ),
    "a process is known by its name": (
        "through the parent's connection",
        (
            "self.owner != os.getpid()",
            "self.owner != __import__('multiprocessing').current_process().name",
            "timeout=10), os.getpid()",
            "timeout=10), __import__('multiprocessing').current_process().name",
        ),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_wrong_client_is_told_what_is_wrong_with_it(name):
    said, changes = ANSWERS[name]
    verdict = check_client(famous(check_client.reference, {name: changes})[name])
    assert verdict.status == "wrong", verdict
    assert said in verdict.message, verdict


def test_an_answer_that_comes_too_late_once_is_no_fault():
    late = []

    class OnceLate(check_client.reference):
        def ask(self, method, path, body=None):
            if body and len(body) > 100_000 and not late:
                late.append(body)
                self.connection.request(method, path, body)  # its answer is never read
                raise TimeoutError("timed out")
            return super().ask(method, path, body)

    verdict = check_client(OnceLate)
    assert late
    assert verdict, verdict


def test_an_answer_that_is_never_read_is_a_fault_each_time():
    class AlwaysLate(check_client.reference):
        def ask(self, method, path, body=None):
            if body and len(body) > 100_000:
                self.connection.request(method, path, body)
                raise TimeoutError("timed out")
            return super().ask(method, path, body)

    verdict = check_client(AlwaysLate)
    assert "the request after a status of 404 or 413 fails with CannotSendRequest" in verdict.message, verdict
