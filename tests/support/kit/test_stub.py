"""An untouched stub is neither right nor wrong, and whoever has written a return has begun."""

import pytest

from support.kit.compare import check_function
from support.kit.stub import untouched


def verdict(answer):
    return check_function(answer, lambda n: n * n, [{"n": 3}], what="the square")


def raising_stub(n):
    raise NotImplementedError("about one line")


def ellipsis_stub(n): ...


def documented_stub(n):
    """Return the first n squares; about one line."""


def pass_stub(n):
    pass


@pytest.mark.parametrize("stub", [ellipsis_stub, documented_stub, pass_stub, raising_stub])
def test_an_untouched_stub_is_neither_right_nor_wrong(stub):
    assert untouched(stub)
    assert verdict(stub).status == "open"
    assert "Not attempted yet" in repr(verdict(stub))


RETURNING = {
    "return": "def answer(n):\n    return",
    "return None": "def answer(n):\n    return None",
    "behind a docstring": "def answer(n):\n    'The ² of all.'; return None",
    "behind what stood there": "def answer(n):\n    ...\n    return None",
    "over lines": "def answer(n):\n    return (\n        None\n    )",
    "a lambda": "answer = lambda n: None",
}


@pytest.mark.parametrize("text", RETURNING.values(), ids=RETURNING)
def test_whoever_has_written_return_has_begun_though_python_makes_the_same_of_it_as_of_pass(text, tmp_path):
    (tmp_path / "answer.py").write_text(text, encoding="utf-8")
    space = {}
    exec(compile(text, str(tmp_path / "answer.py"), "exec"), space)
    assert not untouched(space["answer"])
    assert verdict(space["answer"]).status == "wrong"
    assert "returned None" in verdict(space["answer"]).message


def test_where_a_text_is_not_at_hand_a_function_that_does_nothing_is_a_stub():
    space = {}
    exec("def answer(n):\n    return None", space)
    assert untouched(space["answer"])
