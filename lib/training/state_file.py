"""One file of tensors and of what JSON can hold: whole or not at all, without pickle, and it comes back as it was.

    model/words.weight            an entry for every tensor
    json                          all else, and of every tensor its shape and its kind of numbers

What numpy has no numbers for, as bfloat16, stands there as integers of as many bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib.files import whole_or_not_at_all

FORMAT = 3


def write_state_file(
    path: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]
) -> None:
    """Write tensors and values beside the file, then rename them onto it.

    Whoever is killed meanwhile leaves the old file as it was. One process may write at a time.

    Raises ValueError, before anything is written, for a tensor that numpy can't hold in any way (sparse, quantized, of
    a meta device) and for a value that JSON would not give back equal, with its name.
    """
    arrays = {name: _array(name, tensor) for name, tensor in tensors.items()}
    described = {
        name: [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] for name, tensor in tensors.items()
    }
    for name, value in values.items():
        refuse_what_json_changes(name, value)
    text = json.dumps({"format": FORMAT, "tensors": described, **values})
    with whole_or_not_at_all(path, "unfinished") as unfinished, open(unfinished, "wb") as file:
        np.savez(file, allow_pickle=False, json=np.array(text), **arrays)
        file.flush()
        os.fsync(file.fileno())


def read_state_file(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors and the values of a file.

    Raises FileNotFoundError, and ValueError for a file that is damaged, has another format, or holds other tensors than
    it says.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        values = json.loads(str(arrays.pop("json")))
        found = values.pop("format")
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, zlib, numpy and json say in a dozen ways that a file is damaged
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    if found != FORMAT:
        raise ValueError(f"{path} has format {found}, this program reads {FORMAT}; remove it to begin anew")
    try:
        described = values.pop("tensors")
        for name in sorted(arrays.keys() ^ described.keys()):
            raise ValueError(f"{name} is {'not told of' if name in arrays else 'missing'}")
        return {name: _tensor(name, array, *described[name]) for name, array in arrays.items()}, values
    except Exception as error:
        raise _damaged(path, str(error)) from error


def refuse_what_json_changes(name: str, value: Any) -> None:
    """Raise ValueError with the name of a value that JSON can't hold, or would give back as another one."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{name} has the key {key!r}, and JSON gives back strings; give it as {str(key)!r}")
            refuse_what_json_changes(f"{name}[{key!r}]", part)
        return
    try:
        back = json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} can't be saved: {value!r} is nothing that JSON holds ({error})") from error
    if back != value:
        raise ValueError(f"{name} would not come back equal: {value!r} as {back!r}; save it in a form that JSON keeps")


def _description(tensor: torch.Tensor) -> tuple[list[int], str]:
    return list(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def _array(name: str, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    try:
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        try:
            return plain.numpy()
        except TypeError:  # numpy has no such numbers
            same_size = getattr(torch, f"int{8 * plain.itemsize}")
            return plain.view(same_size).numpy()
    except (TypeError, RuntimeError, NotImplementedError, AttributeError) as error:
        kind = f"{tensor.layout} tensor of {tensor.dtype} on {tensor.device}"
        raise ValueError(f"{name} can't be saved: numpy can't hold a {kind} ({error})") from error


def _tensor(name: str, array: np.ndarray[Any, Any], shape: list[int], dtype: str) -> torch.Tensor:
    """Return an entry as the tensor that it was; raises ValueError if it is none of this shape and these numbers."""
    tensor = torch.from_numpy(array)
    numbers: torch.dtype = getattr(torch, dtype)
    as_integers = getattr(torch, f"int{8 * tensor.itemsize}", None)
    if tensor.dtype == as_integers and numbers.itemsize == tensor.itemsize and not _numpy_has(numbers):
        tensor = tensor.view(numbers)
    if list(tensor.shape) != shape or tensor.dtype != numbers:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, {tensor.dtype}, and was {tuple(shape)}, {numbers}")
    return tensor


def _numpy_has(numbers: torch.dtype) -> bool:
    try:
        torch.empty(0, dtype=numbers).numpy()
    except TypeError:
        return False
    return True


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} is no training state ({reason}); remove it to begin anew")
