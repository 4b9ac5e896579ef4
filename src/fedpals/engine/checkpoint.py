"""Atomic save and bit-exact resume: tensors and a few facts in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialized
from torch import Tensor

from fedpals.errors import InputError
from fedpals.files import replacing


def save(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Replace the file at ``path``; a crash at any moment leaves the old one or the new one."""
    content = serialized({name: t.contiguous() for name, t in tensors.items()}, {"facts": json.dumps(facts)})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts of a file that `save` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a mapping
            facts = json.loads((file.metadata() or {})["facts"])
    except (SafetensorError, KeyError, json.JSONDecodeError, OSError) as error:
        raise InputError(f"{path}: not a checkpoint of this program ({error}); delete it, and train again") from None
    return tensors, facts
