"""A view shares memory with what it was taken from, whatever operator takes it."""

import pytest
import torch

VIEWS = {
    "unfold": lambda x: x.unfold(0, 2, 1)[0],
    "view_as_real": lambda x: torch.view_as_real(torch.view_as_complex(x.view(-1, 2))),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(-1, 2)),
    "view": lambda x: x.view(2, -1)[0],
    "reshape": lambda x: x.reshape(2, -1)[0],
    "as_strided": lambda x: x.as_strided((2,), (1,)),
    "of another dtype": lambda x: x.view(torch.int32),
    "detach": lambda x: x.detach()[:2],
    "narrow": lambda x: x.narrow(0, 0, 2),
    "permute": lambda x: x.view(2, 2).permute(1, 0)[0],
    "diagonal": lambda x: x.view(2, 2).diagonal(),
    "split": lambda x: x.split(2)[0],
    "unbind": lambda x: x.view(2, 2).unbind()[0],
    "expand": lambda x: x[:1].expand(1),
    "real": lambda x: torch.view_as_complex(x.view(-1, 2)).real,
    "conj": lambda x: torch.view_as_complex(x.view(-1, 2)).conj(),
    "imag of conj": lambda x: torch.view_as_complex(x.view(-1, 2)).conj().imag,
}


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_written_into_a_view_is_written_into_its_base(device, name):
    x = torch.arange(1.0, 5.0, device="simgpu")
    expected = torch.arange(1.0, 5.0)
    VIEWS[name](x).zero_()
    VIEWS[name](expected).zero_()
    assert x.tolist() == expected.tolist()
    assert 0 in expected


@pytest.mark.filterwarnings("error:.*appears to be a view operator")
def test_every_view_operator_of_torch_is_taken_as_a_view(device):
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    shared = ("CompositeExplicitAutograd", "CompositeImplicitAutograd", "PrivateUse1")
    wrong = []
    for schema in torch._C._jit_get_all_schemas():
        name = ".".join(filter(None, (schema.name, schema.overload_name)))
        is_view = any(result.alias_info and not result.alias_info.is_write for result in schema.returns)
        if name.startswith("aten::") and is_view and torch._C._dispatch_has_kernel(name) and has(name, "CPU"):
            wrong += [] if any(has(name, key) for key in shared) else [name]
    assert wrong == ["aten::_nested_view_from_buffer"], "nested tensors are not for this device"


def test_conjugated_and_negated_numbers_are_copied_as_they_are_meant(device):
    x = torch.tensor([1 + 2j, 3 - 4j])
    for view in (x.conj(), x.conj().imag, x.conj()[1:]):
        assert torch.equal(view.to("simgpu").cpu(), view)
    there = x.to("simgpu")
    assert torch.equal(there.conj().cpu(), x.conj())
    assert torch.equal(there.conj().imag.cpu(), x.conj().imag)
    assert torch.equal(there.conj().to("simgpu:1").cpu(), x.conj())
    assert torch.equal((there.conj() @ there).cpu(), x.conj() @ x)
    target = torch.zeros(2, dtype=x.dtype, device="simgpu")
    target.conj().copy_(there)
    assert torch.equal(target.cpu(), x.conj())
