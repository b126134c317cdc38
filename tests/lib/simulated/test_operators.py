"""torch's operators compute on a simulated device what they compute on the CPU, backward too: torch's own samples.

torch keeps a table of its operators with inputs to try each on (OpInfo). Those that nn, autograd and lib use are named
here: `make test` tries each fourth, `make prove` all samples of these, and nearly all other operators of the table.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.sizes import size

#: Of each operator.
SAMPLES = size(suite=3, prove=1_000)

#: Doubles first: so close to equal, rounding can't hide a fault.
DTYPES = (torch.float64, torch.int64, torch.complex128, torch.bool, torch.float32, torch.float16)

# fmt: off
NAMED = [
    # what lib calls on tensors
    "add", "sub", "mul", "div/no_rounding_mode", "div/floor_rounding",
    "neg", "abs", "pow", "sqrt", "rsqrt", "square", "exp", "log", "log1p", "sin", "cos",
    "tanh", "sigmoid", "sign", "clamp", "maximum", "minimum", "where", "sum", "mean", "std", "var", "prod", "amax",
    "amin", "max/reduction_no_dim", "min/reduction_with_dim", "argmax", "all", "any", "eq", "ne", "lt", "le", "gt",
    "ge", "isnan", "isfinite", "logical_and", "bitwise_and", "floor", "round", "remainder", "floor_divide", "cumsum",
    "norm", "linalg.vector_norm", "logsumexp", "sort", "topk", "unique", "nonzero", "addcmul", "addcdiv", "lerp",
    "fill", "zero_", "clone", "contiguous", "item",
    # shapes and parts
    "cat", "stack", "split", "split/list_args", "chunk", "reshape", "view", "permute", "transpose", "t", "squeeze",
    "unsqueeze", "expand", "repeat", "flatten", "narrow", "select", "slice", "unbind", "flip", "roll", "tril", "triu",
    "diagonal", "masked_fill", "masked_select", "gather", "scatter", "scatter_add", "index_select", "index_add",
    "index_put", "take", "repeat_interleave", "as_strided", "tile", "__getitem__",
    # made of nothing
    "zeros", "ones", "full", "arange", "eye", "linspace", "zeros_like", "ones_like", "full_like", "new_zeros",
    # products
    "mm", "mv", "bmm", "matmul", "addmm", "addmm/decomposed", "baddbmm", "addmv", "addr", "dot", "outer", "einsum",
    "nn.functional.linear", "nn.functional.bilinear", "linalg.inv", "linalg.solve", "linalg.qr", "linalg.cholesky",
    # layers and losses
    "nn.functional.relu", "nn.functional.gelu", "nn.functional.silu", "nn.functional.elu", "nn.functional.leaky_relu",
    "nn.functional.softplus", "nn.functional.glu", "nn.functional.logsigmoid", "softmax", "log_softmax",
    "nn.functional.layer_norm", "nn.functional.rms_norm", "nn.functional.group_norm", "nn.functional.instance_norm",
    "nn.functional.batch_norm", "nn.functional.normalize", "nn.functional.conv1d", "nn.functional.conv2d",
    "nn.functional.conv3d", "nn.functional.conv_transpose2d", "nn.functional.max_pool2d", "nn.functional.avg_pool2d",
    "nn.functional.adaptive_avg_pool2d", "nn.functional.interpolate/bilinear", "nn.functional.interpolate/nearest",
    "nn.functional.pad/constant", "nn.functional.pad/reflect", "nn.functional.unfold", "nn.functional.embedding",
    "nn.functional.embedding_bag", "nn.functional.one_hot", "nn.functional.scaled_dot_product_attention",
    "nn.functional.cosine_similarity", "nn.functional.mse_loss", "nn.functional.l1_loss", "nn.functional.huber_loss",
    "nn.functional.smooth_l1_loss", "nn.functional.nll_loss", "nn.functional.cross_entropy", "nn.functional.kl_div",
    "nn.functional.binary_cross_entropy", "nn.functional.binary_cross_entropy_with_logits",
    "nn.functional.cosine_embedding_loss", "nn.functional.ctc_loss",
    # complex numbers
    "conj", "real", "imag", "view_as_real", "complex", "fft.fft", "fft.irfft",
]
# fmt: on


@cache
def table() -> dict[str, Any]:
    """Return torch's table, "name" or "name/variant"; its import takes three seconds."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {"/".join(filter(None, (info.name, info.variant_test_name))): info for info in op_db}


def samples(name: str) -> Iterator[Any]:
    """Yield an operator's first samples, of the CPU, in the first of these dtypes that it takes."""
    info = table()[name]
    dtype = next(dtype for dtype in DTYPES if dtype in info.dtypes)
    wanted = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    for sample in islice(info.sample_inputs("cpu", dtype, requires_grad=wanted), SAMPLES):
        if not sample.kwargs.get("dropout_p"):  # each device draws numbers of its own
            yield sample


def moved(value: Any) -> Any:
    """Return what a sample holds, on the device: tensors, anything else as it is."""
    if isinstance(value, Tensor):
        return value.detach().to("simgpu").requires_grad_(value.requires_grad)
    return value


def tensors(*values: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def results(info: Any, sample: Any) -> tuple[Any, list[Tensor]]:
    """Return what an operator gives for a sample, and the gradients of all inputs for the sum of all outputs."""
    out = info(sample.input, *sample.args, **sample.kwargs)
    processed = sample.output_process_fn_grad(out)
    inputs = [x for x in tensors(sample.input, sample.args, sample.kwargs) if x.requires_grad]
    outputs = [y for y in tensors(processed) if y.requires_grad]
    if not inputs or not outputs:
        return out, []
    sums = [(y.real + y.imag).sum() if y.is_complex() else y.sum() for y in outputs]
    return out, list(torch.autograd.grad(sums, inputs, allow_unused=True, materialize_grads=True))


def assert_equal_to_the_cpu(name: str) -> int:
    """Compare all samples of an operator; return how many there were."""
    info = table()[name]
    tried = 0
    for sample in samples(name):
        there = sample.transform(moved)
        makes_a_tensor_of_nothing = not tensors(sample.input, sample.args, sample.kwargs)
        if makes_a_tensor_of_nothing or "device" in sample.kwargs:
            there.kwargs["device"] = "simgpu"
        theirs = results(info, sample)
        ours = results(info, there)
        for got, expected in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
            if isinstance(expected, Tensor):
                assert got.device == torch.device("simgpu:0")
                torch.testing.assert_close(got.cpu(), expected, equal_nan=True)
            else:
                assert got == expected
        tried += 1
    return tried


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.costly] if k % 4 else []) for k, n in enumerate(NAMED)]
)
def test_an_operator_gives_what_the_cpu_gives_forward_and_backward(device, name):
    assert assert_equal_to_the_cpu(name) > 0, "torch has no sample of it"


#: What can't be equal, and why: operators of torch's table, by their names, or with * by the beginning of them.
LEFT_OUT = {
    "each device draws numbers of its own": [
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal*", "rand*", "uniform",
        "nn.functional.alpha_dropout", "nn.functional.dropout*", "nn.functional.feature_alpha_dropout*",
        "nn.functional.fractional_max_pool*", "nn.functional.multi_head_attention_forward", "nn.functional.rrelu",
        "pca_lowrank", "svd_lowrank",
    ],
    "new memory holds anything": ["empty*", "new_empty*", "as_strided/partial_views"],
    "no sparse tensors on the device": ["sparse.*", "to_sparse"],
    "batch norm in eval mode leaves out what nobody reads": ["native_batch_norm", "_native_batch_norm_legit"],
    "its second tensor, or its result, is the CPU's": ["tensor_split", "linspace/tensor*", "logspace/tensor*", "to"],
    "takes no tensor and gives none": ["broadcast_shapes"],
    "the CPU gives no gradient of a window that it pads": ["istft"],
    "compiled for CUDA alone": ["jiterator*", "torch._scaled_mm*"],
    "its samples are larger than these devices": ["grid_sampler_3d"],
}  # fmt: skip


def left_out(name: str) -> bool:
    only_for_cuda = not table()[name].dtypes
    return only_for_cuda or any(fnmatchcase(name, pattern) for patterns in LEFT_OUT.values() for pattern in patterns)


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_all_other_operators_give_what_the_cpu_gives(device):
    others = [name for name in table() if name not in NAMED and not left_out(name)]
    assert len(others) > 400
    wrong = []
    for name in others:
        try:
            assert assert_equal_to_the_cpu(name) > 0, "torch has no sample of it"
        except Exception as error:  # all of them are told at once
            wrong.append(f"{name}: {str(error)[:200]}")
    assert not wrong, "\n".join(wrong)


def test_a_name_that_torch_does_not_know_fails(device):
    with pytest.raises(KeyError, match="no_such_operator"):
        assert_equal_to_the_cpu("no_such_operator")


def test_enough_operators_are_named_each_once():
    assert len(NAMED) == len(set(NAMED)) >= 150
