"""Notebook 03's measurements: company in a batch, what DDP sends, a function on real ranks; torch's text unstored."""

import inspect
import json

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler as TorchSampler

from support.n03 import runs
from support.n03.annotated import METHODS, Beside, statements_of
from tools.project import ROOT


def data(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 64, generator=generator), torch.randint(10, (rows,), generator=generator)


def test_a_step_of_all_ranks_normalises_each_by_its_own_rows_as_batchnorm1d_does():
    networks = runs.Networks(1, batch_norm=True)
    (x, _) = data(8)
    first, scale, shift, second, bias = (weight[0].detach() for weight in networks.weights)
    got = networks.logits(x[None], ranks=2)[0]
    own = torch.nn.BatchNorm1d(32)
    evaluated = networks.logits(x[None])[0]
    for rank in (0, 1):
        layer = own if rank == 0 else torch.nn.BatchNorm1d(32)
        hidden = torch.relu(layer(x[rank::2] @ first) * scale + shift)
        torch.testing.assert_close(got[rank::2], hidden @ second + bias)
    torch.testing.assert_close(evaluated, torch.relu(own.eval()(x @ first) * scale + shift) @ second + bias)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_training_depends_on_the_seed_and_the_order_and_learns(batch_norm):
    train_set = data(16)
    threads = torch.get_num_threads()
    orders = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)])
    orders = orders[:, None].expand(-1, 40, -1)
    how = dict(ranks=2, batch_norm=batch_norm, rate=0.5)
    found = runs.train(orders, train_set, train_set, **how)
    again = runs.train(orders[:1], train_set, train_set, **how)
    assert torch.get_num_threads() == threads and {len(values) for values in found.values()} == {3}
    assert found["test loss"][0] == pytest.approx(again["test loss"][0], rel=1e-4)
    assert len({round(loss, 6) for loss in found["test loss"]}) == 3
    assert max(found["as trained"]) < 1
    for groups in ("as trained", "in other groups"):  # for a plain network the groups do not matter
        assert (found[groups] == pytest.approx(found["as evaluated"], rel=1e-4)) is not batch_norm
    assert not batch_norm or max(found["as trained"]) < min(found["in other groups"])
    with pytest.raises(ValueError, match="16 positions are no multiple of 3 ranks × 4 rows"):
        runs.train(orders, train_set, train_set, ranks=3, batch_norm=batch_norm)


def test_a_call_that_sends_nothing_is_told_from_one_that_does():
    assert runs.what_is_sent(lambda: torch.ones(2) + 1) == "nothing"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert runs.what_is_sent(lambda: [dist.all_reduce(torch.ones(2)), dist.barrier()]) == "allreduce, barrier"
    finally:
        dist.destroy_process_group()


def doubled(number):
    return 2 * number


def add_ranks(number):
    total = torch.tensor(doubled(number) + dist.get_rank())
    dist.all_reduce(total)
    print(f"{int(total)}", flush=True)
    print("and no more", flush=True)


@pytest.mark.ranks
def test_functions_run_on_real_ranks_by_their_text_and_the_lines_come_rank_by_rank():
    said = [f"[rank {rank}] {line}" for rank in (0, 1) for line in ("41", "and no more")]
    assert runs.on_ranks(doubled, add_ranks, values=(10,), ranks=2) == said


def test_each_statement_of_torchs_class_is_retold_and_none_is_left_out():
    for name in METHODS:
        function = getattr(TorchSampler, name)
        told = list(statements_of(function))
        assert all(words for _, words in told), f"{name}: {[text for text, words in told if not words]}"
        shown = {line.strip() for text, _ in told for line in text.splitlines()}
        code = [line.partition("  # ")[0].strip() for line in inspect.getsource(function).splitlines()]
        assert {"self.epoch = epoch", "return self.num_samples"} & shown or name in ("__init__", "__iter__")
        assert {line for line in code if line.startswith(("self.", "indices", "g.", "raise"))} <= shown


def test_a_statement_that_torch_may_add_is_shown_and_said_to_be_unknown():
    class Changed(TorchSampler):
        def __len__(self):
            "Not this line."
            print("new")
            return self.num_samples

    assert next(words for _, words in statements_of(Changed.__len__)) == ""
    page = Beside(Changed, runs.digits).page(live=True)
    assert "Not in the torch for which this was written" in page and "Not this line" not in page


def test_what_is_stored_has_our_words_and_no_line_of_torchs_class():
    lines = {line.strip() for line in inspect.getsource(TorchSampler).splitlines()}
    long = {line for line in lines if len(line) > 35}
    beside = Beside(TorchSampler, runs.digits)
    live = beside.page(live=True)
    stored = beside._repr_mimebundle_()["text/html"]
    assert "indices[self.rank :" in live and "def digits" in live and "The slice: start at the rank" in stored
    for path in (ROOT / "notebooks").glob("**/03_distributed_sampler.ipynb"):
        texts = json.dumps(json.loads(path.read_text(encoding="utf-8")), ensure_ascii=False) + stored
        assert [line for line in long if line in texts] == []
