"""Imports point down only, and the core stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedpals

SOURCE = Path(fedpals.__file__).parent

LAYERS = [
    {"cli"},
    {"report"},
    {"experiments"},
    {"simulator", "flower"},
    {"server"},
    {"worker", "trackers"},
    {"record"},
    {"run"},
    {"training", "models", "evaluation"},
    {"methods"},
    {"data"},
    {"checkpoint", "augmentation"},
    {"tables"},
    {"shift", "privacy"},
    {"weights"},
    {"labels"},
    {"atomic"},
    {"errors", "rng"},
]
"""From the top down; the modules of a layer do not know each other."""


def level(module: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if module in layer)


def arrows() -> list[tuple[str, str]]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        owner = path.relative_to(SOURCE).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
                if node.module == "fedpals":
                    names = [f"fedpals.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            found += [(owner, name.split(".")[1]) for name in names if name.startswith("fedpals.")]
    return found


@pytest.mark.parametrize(("owner", "imported"), sorted(set(arrows())))
def test_imports_point_down(owner: str, imported: str) -> None:
    if owner in {"__init__", imported}:
        return
    assert level(owner) < level(imported), f"{owner} must not import {imported}"


@pytest.mark.parametrize("module", ["fedpals", "fedpals.methods", "fedpals.cli"])
def test_the_core_loads_neither_torch_nor_flower_nor_matplotlib(module: str) -> None:
    code = f"import sys, {module}; print(*({{'torch', 'flwr', 'matplotlib', 'sklearn'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
