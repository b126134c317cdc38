"""The site of the whole course, built once for all tests that read it."""

import pytest

from tools.project import chapters
from tools.site.build import Site, build, stored


@pytest.fixture(scope="session")
def course_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Return the site of all notebooks, with the outputs that they store."""
    return build(tmp_path_factory.mktemp("course") / "site", chapters(), stored)
