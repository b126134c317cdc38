import pytest

from lib.data.meta import MetaFile
from tests.lib.data.rank_rows import N


@pytest.fixture
def thousand(tmp_path):
    meta_path = tmp_path / "captions.txt"
    meta_path.write_text("".join(f'img/{i:04}.png "number {i}"\n' for i in range(1000)))
    return meta_path


@pytest.fixture(scope="module")
def meta(tmp_path_factory):
    path = tmp_path_factory.mktemp("meta") / "captions.txt"
    path.write_text("# image caption\n" + "".join(f'img/{i:04}.png "number {i}"\n' for i in range(N)))
    with MetaFile(path) as meta:
        yield meta
