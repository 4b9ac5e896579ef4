"""Atomic save and bit-exact resume: tensors and a few facts in one safetensors file, with a checksum of both."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialized
from torch import Tensor

from fedpals.engine.lock import locked
from fedpals.errors import InputError
from fedpals.files import replacing, try_folder, writing

_CHECKSUM = "sha256"
"""The fact that is the checksum of all others and of the tensors."""


def save(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, private: bool = False) -> None:
    """Replace the file at ``path``; a crash at any moment leaves the old one or the new one."""
    text = json.dumps({**facts, _CHECKSUM: _checksum(tensors, facts)})
    content = serialized({name: t.contiguous() for name, t in tensors.items()}, {"facts": text})
    with replacing(path, private=private) as temporary:
        temporary.write_bytes(content)


def previous(path: Path) -> Path:
    """Return where the state before the one at ``path`` is kept."""
    return path.with_name(f"{path.stem}-previous{path.suffix}")


def keep_previous(path: Path) -> None:
    """Keep the state at ``path``, if there is one, under the name of the previous one; it stays at ``path``, too."""
    if path.is_file():
        with replacing(previous(path), private=True) as temporary:
            temporary.unlink()
            try:
                os.link(path, temporary)
            except OSError:  # a file system without links
                shutil.copyfile(path, temporary)


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Hold the lock of a checkpoint inside the block; raise `InputError` at once if it cannot be written."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the name of a file")
    with writing(path):
        try_folder(path.parent)
    with locked(path.parent, name=f".{path.name}.lock") as is_free:
        if not is_free:
            raise InputError(f"{path}: another server writes this checkpoint; wait for its end, or choose another file")
        yield


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts of a file that `save` wrote; raise `InputError` unless all bits are as they were."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a mapping
            facts = dict(json.loads((file.metadata() or {})["facts"]))
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(f"{path}: not a checkpoint of this program ({error}); {remedy(path)}") from None
    if (expected := facts.pop(_CHECKSUM, None)) is None:
        raise InputError(f"{path}: has no checksum, as those of earlier development versions; {remedy(path)}")
    if _checksum(tensors, facts) != expected:
        raise InputError(f"{path}: is damaged, its content does not have the checksum in it; {remedy(path)}")
    return tensors, facts


def remedy(path: Path) -> str:
    """Return what to do where the file at ``path`` is of no use."""
    kept = previous(path)
    return f"go back to the state before it: mv {kept} {path}" if kept.is_file() else "delete it, and train again"


def _checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
