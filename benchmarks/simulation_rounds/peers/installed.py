"""Whether a peer is there to be measured."""

from __future__ import annotations

from importlib.util import find_spec


def installed(*modules: str) -> bool:
    """Return whether all modules are installed; say so where they are not."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        print(f"  skipped: {', '.join(missing)} is not installed (extra bench)")
    return not missing
