"""The small site, built once, and the browser of tests/browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import browser, chromium
from tests.site import small

if TYPE_CHECKING:
    from tools.site.build import Site

__all__ = ["browser", "chromium"]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return small.site(tmp_path_factory.mktemp("course"))
