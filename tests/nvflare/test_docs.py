"""The Python block of the page on NVIDIA FLARE gives a site what it trains with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'fedpals[nvflare]'")

import fedpals.nvflare
from fedpals.engine.trainee import Trainee
from fedpals.models.networks import build
from tests.flower.grids import worker
from tests.test_docs import blocks


def test_the_ready_script_loads_a_site(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("docs/nvflare.md")
    client, loaded = worker().client(0), []

    def run_client(load: Callable[[str], Trainee]) -> None:
        loaded.append(load("site-1"))

    monkeypatch.setattr(fedpals.nvflare, "run_client", run_client)
    names: dict[str, Any] = {
        "my_samples": lambda site: (client.x, client.y) if site == "site-1" else None,
        "Net": partial(build, "logistic", shape=tuple(client.x.shape[1:]), classes=10, seed=0),
    }
    exec(compile(code, "docs/nvflare.md", "exec"), names)
    (trainee,) = loaded
    assert isinstance(trainee, Trainee)
