"""Write and read a model's tensors as safetensors: one file of full tensors, or a folder with one file per process.

Sharded tensors are written through ``torch.distributed.checkpoint``: each process writes the rows that it holds to one
file in the folder. Any number of processes can read the folder, and each process reads only the rows that it needs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageReader, HuggingFaceStorageWriter

from fspo.distributed.tensors import Tensors, holders, put

SUFFIX = ".safetensors"


def write(path: Path, tensors: Mapping[str, torch.Tensor], *, writes: bool) -> None:
    """Write tensors to the file ``path`` with the ending .safetensors, or to the folder ``path`` if any is sharded.

    Every process must call this function. If no tensor is sharded, only the process with ``writes`` true writes the
    file. Else each process writes the rows that it holds to the folder. A tensor that is not sharded is written to the
    folder by the first process alone.

    Raise OSError or SafetensorError if the files cannot be written. If one of several processes fails to write its
    rows, all processes raise."""
    if any(map(holders, tensors.values())):
        with _error_of_any_process():
            dcp.save(
                dict(tensors),
                storage_writer=HuggingFaceStorageWriter(str(path), save_distributed=True),
                planner=dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=True),
            )
    elif writes:
        full = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        save_file(full, path.with_suffix(SUFFIX))


def listed(path: Path, shards: int) -> Tensors:
    """Return the tensors of the file or folder ``path`` (written by `write`), on torch's meta device: shapes and types,
    no values.

    Parameters
    ----------
    shards : int
        Number of processes that wrote a file to the folder ``path``; 0 if `write` wrote one file of full tensors.

    Raises
    ------
    OSError, SafetensorError, ValueError
        If a file is missing or incomplete.
    """
    if not shards:
        with safe_open(path.with_suffix(SUFFIX), framework="pt") as file:
            names = file.keys()
            return {name: torch.empty_like(file.get_tensor(name), device="meta") for name in names}
    files = list(path.glob(f"*{SUFFIX}"))
    if len(files) != shards:
        raise ValueError(f"{path.name} has {len(files)} of {shards} files")
    with _error_of_any_process():
        entries: Any = HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
    return {n: torch.empty(entry.size, dtype=entry.properties.dtype, device="meta") for n, entry in entries.items()}


def read(path: Path, targets: Tensors, shards: int) -> None:
    """Fill tensors in place with the values that `write` has written to ``path`` under the same names.

    Every process must call this function. The targets may be sharded over any number of processes, and each process
    reads only the rows that it holds. Beside the targets, memory holds the values of one tensor at a time.

    Raise OSError, SafetensorError or ValueError if the files cannot be read. If one process fails to read its rows from
    a folder, all processes raise."""
    with torch.no_grad():
        if shards:
            with _error_of_any_process(), warnings.catch_warnings():
                # torch warns if files are read without torch.distributed. A run of one process does this on purpose, so
                # the warning is hidden.
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                dcp.load(targets, storage_reader=HuggingFaceStorageReader(str(path)))
            return
        with safe_open(path.with_suffix(SUFFIX), framework="pt") as file:
            for name, target in targets.items():
                put(target, file.get_tensor(name))


@contextmanager
def _error_of_any_process() -> Iterator[None]:
    """Replace torch.distributed.checkpoint's exception in a ``with`` block by the first error that it has collected.

    The exception holds the errors of all processes and is raised in each of them, so every process raises the error."""
    try:
        yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None
