"""Each test in a thread of its own, as young as a notebook's.

autograd numbers the functions of each thread from 0 on. A process that has run many tests is older than the workers of
this notebook's trials are made: the order that hangs on ages would be another.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    names = pyfuncitem._fixtureinfo.argnames
    given = {name: pyfuncitem.funcargs[name] for name in names}
    with ThreadPoolExecutor(1) as young:
        young.submit(pyfuncitem.obj, **given).result()
    return True
