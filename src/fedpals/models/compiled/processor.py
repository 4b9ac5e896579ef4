"""What compiled code depends on in the processor; loads no compiler."""

from __future__ import annotations

import os

import llvmlite.binding as llvm  # type: ignore[import-untyped]

from fedpals.errors import InputError

LANES = 16 if llvm.get_host_cpu_features().get("avx512f") else 8
"""Numbers in one vector, 8 or 16. A processor with narrower registers uses several of them for one vector."""
if wanted := os.environ.get("FEDPALS_LANES"):
    if wanted not in {"8", "16"}:
        raise InputError(f"FEDPALS_LANES is {wanted!r}; set it to 8 or 16, or leave it out")
    LANES = int(wanted)

COMPRESSES = bool(llvm.get_host_cpu_features().get("avx512f"))
"""Whether an instruction puts some lanes of a vector of 16 one after the other."""

ROWS, VECTORS = (8, 3) if LANES == 16 else (4, 3)
"""Size of the tile of a matrix product that is in registers: its sums take 24 of 32 registers, or 12 of 16."""
COLUMNS = VECTORS * LANES


def kind() -> tuple[str, ...]:
    """Return what tells apart processors that need code of their own."""
    return str(LANES), llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
