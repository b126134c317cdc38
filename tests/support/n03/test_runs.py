"""Notebook 03's other measurements: what DDP sends, and torch's own class beside the reader's."""

import ast
import inspect
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler as TorchSampler

from support.built import MyDistributedSampler, my_share
from support.n03 import annotated, runs


def test_a_call_that_sends_nothing_is_told_from_one_that_does():
    assert runs.what_is_sent(lambda: torch.ones(2) + 1) == "nothing"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert runs.what_is_sent(lambda: [dist.all_reduce(torch.ones(2)), dist.barrier()]) == "allreduce, barrier"
    finally:
        dist.destroy_process_group()


def test_each_statement_of_torchs_class_is_retold_and_none_is_left_out():
    methods = annotated.methods_of(annotated.STORED)
    assert tuple(methods) == annotated.METHODS
    for name, method in methods.items():
        told = list(annotated.statements_of(method, annotated.STORED))
        assert all(words for _, words in told), f"{name}: {[text for text, words in told if not words]}"
        shown = "def f():\n" + "\n".join(
            f"    {line}" for text, _ in told for line in text.splitlines() if line.strip()
        )
        docstring = isinstance(method.body[0], ast.Expr)
        statements = [ast.unparse(node) for node in method.body[docstring:]]
        assert [ast.unparse(node) for node in ast.parse(shown).body[0].body] == statements


def test_torch_itself_would_stop_a_rank_that_does_not_exist_where_it_is_not_refused_and_the_words_say_so():
    for size, world_size, rank, stopped in (
        (10, 3, 3, True),
        (10, 3, -1, True),
        (3, 8, -1, False),
        (3, 8, 8, True),
        (0, 3, 3, False),
    ):
        sampler = TorchSampler(range(size), world_size, 0)
        sampler.rank = rank
        with pytest.raises(AssertionError, match="num_samples") if stopped else nullcontext():
            list(sampler)
    assert (
        "rank W would stop in its first pass, at the last check, if it had a share at all"
        in annotated.WORDS["rank < 0"]
    )
    assert "rank −1 only if a share is more than one sample" in annotated.WORDS["rank < 0"]


def test_a_statement_that_torch_has_added_since_is_found_and_the_installed_class_is_the_stored_one():
    class Changed(TorchSampler):
        def __len__(self):
            "Not this line."
            print("new")
            return self.num_samples

    assert annotated.differences(Changed) == ["__len__"]
    if torch.__version__.startswith("2.13."):
        assert annotated.differences(TorchSampler) == []
        assert inspect.getsource(TorchSampler) in annotated.STORED


def test_the_page_has_torchs_text_our_words_the_readers_code_and_the_licence_that_allows_it():
    def my_stub(order): ...

    page = annotated.Beside(my_share, MyDistributedSampler, my_stub)._repr_html_()
    assert "indices[self.rank : self.total_size : self.num_replicas]" in page
    assert "The slice: start at the rank" in page
    assert "order[rank::world_size]" in page
    assert "my_stub: not written yet" in page
    assert "Redistributions of source code must retain the above copyright" in page
    assert "Copyright (c) 2016-     Facebook, Inc" in annotated.LICENSE
    assert annotated.LICENSE.rstrip().endswith("POSSIBILITY OF SUCH DAMAGE.")
