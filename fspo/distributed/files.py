"""Files of a model's tensors, in safetensors: one file of full tensors, or a folder of shards.

With sharded tensors each process writes the rows that it holds to a file in the folder, through
``torch.distributed.checkpoint``. Any number of processes can read the folder, each the rows that it needs.
"""

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

from fspo.distributed.tensors import Tensors, is_part, put

SUFFIX = ".safetensors"


def write(path: Path, tensors: Mapping[str, torch.Tensor], *, writes: bool) -> None:
    """Write tensors to the file ``path`` with the ending .safetensors, or to the folder ``path`` if one is sharded.

    Every process must call this. Full tensors are written by one process alone: to the file by that with ``writes``, to
    the folder by the first.

    Raises
    ------
    OSError, SafetensorError
        If the files cannot be written; where one process of several fails to write its shards, all of them raise.
    """
    if any(map(is_part, tensors.values())):
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
    """Return the tensors that `write` has written to ``path``, on torch's meta device: shapes and types, no values.

    Parameters
    ----------
    shards : int
        Number of processes that wrote shards; 0 for one file of full tensors.

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

    Every process must call this. The targets may be sharded, over any number of processes: a process reads its rows
    alone, and the values of one tensor at a time are held in memory beside the targets.

    Raises
    ------
    OSError, SafetensorError, ValueError
        If the files cannot be read; all processes raise if one of them fails to read shards.
    """
    with torch.no_grad():
        if shards:
            with _error_of_any_process(), warnings.catch_warnings():
                # A single process reads the files alone, so torch's warning that it does so is no news.
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                dcp.load(targets, storage_reader=HuggingFaceStorageReader(str(path)))
            return
        with safe_open(path.with_suffix(SUFFIX), framework="pt") as file:
            for name, target in targets.items():
                put(target, file.get_tensor(name))


@contextmanager
def _error_of_any_process() -> Iterator[None]:
    """Raise the first error that torch.distributed.checkpoint has collected from the processes, in all of them."""
    try:
        yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None
