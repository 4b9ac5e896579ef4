"""Addressed randomness: every draw has an address, nothing is seeded globally.

`generator(seed, "batches", round, client)` always yields the same stream, whatever ran before it
and in whichever process it runs. So a run does not depend on the number of workers, and a resumed
run equals an unbroken one bit for bit.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import scipy


def _words(part: str | int) -> tuple[int, ...]:
    """Spawn-key words of one address part; strings and integers never collide."""
    text = f"{type(part).__name__}:{part}".encode()
    digest = hashlib.sha256(text).digest()
    return tuple(int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4))


def seed_sequence(seed: int, *address: str | int) -> np.random.SeedSequence:
    """Return the seed sequence that stands at ``address`` below ``seed``."""
    return np.random.SeedSequence(seed, spawn_key=tuple(w for part in address for w in _words(part)))


def generator(seed: int, *address: str | int) -> np.random.Generator:
    """Return a fresh numpy generator for ``address`` below ``seed``.

    >>> a = generator(0, "batches", 3, 1).integers(1000, size=4)
    >>> b = generator(0, "batches", 3, 1).integers(1000, size=4)
    >>> bool((a == b).all())
    True
    """
    return np.random.default_rng(seed_sequence(seed, *address))


def integer_seed(seed: int, *address: str | int) -> int:
    """Return a 63-bit integer for libraries that take a plain seed, such as ``torch.Generator``."""
    return int(seed_sequence(seed, *address).generate_state(1, np.uint64)[0] >> np.uint64(1))


def keyed_normals(key: str, size: int, *address: str | int) -> npt.NDArray[np.float64]:
    """Return ``size`` standard normal numbers at ``address`` below ``key``; without the key nobody can tell them.

    SHAKE-256 of key and address gives 53 bits u per number, and the normal distribution's inverse at (u + ½)/2⁵³ the
    number, at most 8.3 in size. Numpy's generators are faster, but their state can be computed from what they draw.

    >>> keyed_normals("secret", 3, "noise", 1).round(3).tolist()
    [0.436, 0.268, -1.044]
    """
    shake = hashlib.shake_256(repr((key, *address)).encode())
    words = np.frombuffer(shake.digest(8 * size), dtype="<u8") >> np.uint64(11)
    return np.asarray(scipy.special.ndtri((words + 0.5) * 2.0**-53))
