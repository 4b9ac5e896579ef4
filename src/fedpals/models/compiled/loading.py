"""Machine code, kept on disk for the next process, which then need not load the compiler.

Loading it takes a few hundredths of a second, where numba alone, with a cache of its own, would take more than one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm  # type: ignore[import-untyped]

from fedpals.errors import InputError
from fedpals.files import replacing
from fedpals.models.compiled import processor

_loaded: list[Any] = []
"""What was loaded; it is gone when nobody refers to it."""


class MachineCode(NamedTuple):
    """A compiled function."""

    symbol: str
    """Its name in the code."""
    code: bytes
    """An object file, as linkers read it."""

    def __bytes__(self) -> bytes:
        content = self.symbol.encode() + b"\n" + self.code
        return hashlib.sha256(content).digest() + content

    @classmethod
    def of(cls, data: bytes) -> MachineCode | None:
        """Return what `bytes` has made of machine code; None if it has been damaged."""
        checksum, content = data[:32], data[32:]
        if hashlib.sha256(content).digest() != checksum:
            return None
        symbol, _, code = content.partition(b"\n")
        return cls(symbol.decode(), code)


def load(name: str, compile_: Callable[[], MachineCode]) -> int:
    """Return the address of a function of this package, which is compiled if no process has done so before.

    The name of its file is made of everything that the code depends on, so kinds of processors and versions share a
    folder. It is written whole or not at all; where there is no folder to write to, every process compiles.
    """
    files = [folder / f"{name}-{_digest()}.o" for folder in _folders()]
    for file in files:
        with suppress(OSError):
            if function := MachineCode.of(file.read_bytes()):
                return _link(function)
    function = compile_()
    for file in files:
        with suppress(InputError):
            with replacing(file) as temporary:
                temporary.write_bytes(bytes(function))
            break
    return _link(function)


def _folders() -> Iterator[Path]:
    """Yield where code is looked for, and kept if one can write there: beside Python's own, or in the user's cache."""
    if wanted := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(wanted)
        return
    yield Path(__file__).parent / "__pycache__"
    with suppress(RuntimeError):  # nobody's home is known, as for users of a container that have no name
        yield Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedpals" / "compiled"


def _digest() -> str:
    """Return a name for all that machine code depends on."""
    facts = [*processor.kind(), version("numba"), version("llvmlite")]
    facts += [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("NUMBA_") and k != "NUMBA_CACHE_DIR"]
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"\0".join([*sources, *(fact.encode() for fact in facts)])).hexdigest()[:16]


def _link(function: MachineCode) -> int:
    """Return the address of machine code in this process."""
    with suppress(RuntimeError):  # newer versions begin by themselves, and refuse to be asked
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(function.code))
    engine.finalize_object()
    _loaded.append(engine)
    return int(engine.get_function_address(function.symbol))
