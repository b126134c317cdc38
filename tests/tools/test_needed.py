"""Of a notebook those statements run that are wanted, with what they read, and nothing else."""

import pytest

from tools.needed import needed_sources, only_defines


def asks(statement):
    return "explore(" in statement or "my_guess" in statement


def needed(*sources, always=()):
    return needed_sources(sources, asks, always)


def test_what_an_explorer_reads_runs_and_what_only_prints_and_measures_does_not():
    found = needed(
        "import time\nfrom lib.show.explore import explore\nprint('hello')",
        "begin = time.perf_counter()\nprint(begin)",
        "heights = [1, 2]\ndef draw(n):\n    return bars(n, heights)\ndef other(): ...",
        "def bars(n, heights):\n    return figure",
        "heights = sorted(heights)\nprint(heights)",
        "explore(draw)",
        "explore_later = 1",
    )
    assert found == {
        0: "from lib.show.explore import explore",
        2: "heights = [1, 2]\ndef draw(n):\n    return bars(n, heights)",
        3: "def bars(n, heights):\n    return figure",
        4: "heights = sorted(heights)",
        5: "explore(draw)",
    }


def test_a_prediction_is_asked_with_what_its_check_is_told():
    found = needed("from support.n03 import checks", "x = 1\ny = 2", "my_guess = None\nchecks.guess_it(my_guess, y)")
    assert found == {
        0: "from support.n03 import checks",
        1: "y = 2",
        2: "my_guess = None\nchecks.guess_it(my_guess, y)",
    }


@pytest.mark.parametrize(
    "change",
    [
        "sizes.append(3)",
        "sizes[0] = 3",
        "sizes += [3]",
        "extend(sizes)",
        "for k in range(3):\n    sizes = [k]",
        "sizes.x = 1",
    ],
)
def test_what_may_have_changed_a_value_runs_too(change):
    assert needed("sizes = [1]", change, "print(sizes)", "explore(sizes)") == {
        0: "sizes = [1]",
        1: change,
        3: "explore(sizes)",
    }


def test_what_a_name_stood_for_before_does_not_run():
    loop = "for size in range(3):\n    print(size)"
    assert needed("size = 1", loop, "size = 2", "explore(size)", "size = 3") == {2: "size = 2", 3: "explore(size)"}


def test_a_function_reads_what_its_names_stand_for_where_it_is_called():
    sources = ("def draw(n):\n    return helper(n)", "def helper(n): ...", "explore(draw)")
    assert list(needed(*sources)) == [0, 1, 2]


def test_a_cell_that_always_runs_runs_whole():
    assert needed("a = 1\nprint(a)", "b = 2", always=[0]) == {0: "a = 1\nprint(a)"}


def test_a_decorated_function_runs_with_its_decorator_and_a_magic_is_python():
    assert needed("%pip list\n@wrap\ndef draw(n): ...", "explore(draw)")[0] == "@wrap\ndef draw(n): ..."


def test_what_only_defines_measures_nothing():
    assert only_defines("import time\ndef now():\n    return time.time()")
    assert not only_defines("import time\nnow = time.time()")
