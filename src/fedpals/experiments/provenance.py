"""Provenance of results: what they were computed with, and on what."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedpals.engine import KERNEL_VERSION

_THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_PLATFORM = ("kernel", "processor", "instructions", "torch", "numpy")
"""Facts that have to agree for equal bits; without a fact, results may be from elsewhere."""


def provenance(command: str, scale: str) -> dict[str, Any]:
    """Return command, scale, versions, date, and the machine: its processor, commit of the code, and threads."""
    import torch  # slow to import, so only here

    facts = {
        "command": command,
        "scale": scale,
        "version": version("fedpals"),
        "commit": _commit(),
        "kernel": KERNEL_VERSION,
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": {
            "cores": os.cpu_count(),
            "torch": 1,  # in every worker
            **{name: os.environ[name] for name in _THREAD_SETTINGS if name in os.environ},
        },
        "date": datetime.now(UTC).date().isoformat(),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def continued(facts: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """Return the provenance of results that ``stored`` began and that go on with ``facts``.

    ``earlier`` lists every other platform that some of the runs were computed on, with its last commit and date.
    """
    parts = [
        *stored.get("earlier", []),
        {name: stored[name] for name in (*_PLATFORM, "commit", "date") if name in stored},
    ]
    earlier = [part for part in parts if part and not same_platform(part, facts)]
    latest = {tuple(part.get(name) for name in _PLATFORM): part for part in earlier}
    return {**facts, "earlier": list(latest.values())} if latest else facts


def same_platform(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two provenances have the same arithmetic and kind of processor, which gives equal bits."""
    return all(name in one and one[name] == other.get(name) for name in _PLATFORM) and not one.get("earlier")


def _processor() -> str:
    """Return the name of the processor, as Linux gives it if it does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.processor() or platform.machine()


def _commit() -> str | None:
    """Return the commit of the code, with + if the code differs from it; None if the code is not in a git checkout."""
    here = Path(__file__)

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here.parent), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # an environment may lie in a checkout of something else
        changed = git("status", "--porcelain", "-uno", "--", str(here.parents[1]))  # results may change, code may not
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
