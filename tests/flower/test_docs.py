"""Every Python block of the pages on Flower runs, on real images, in this process."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from types import ModuleType
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict

from fedpals.models.networks import build
from tests.flower.grids import FakeGrid, worker
from tests.test_docs import ROOT, blocks

PARTS = {
    "labels of the quickstart": "def labels(context)",
    "a ready client": "app = client_app(load)",
    "the server": "strategy.start(",
}


def test_blocks_run() -> None:
    code = blocks("docs/flower.md")
    assert all(any(part in block for block in code) for part in PARTS.values())
    federation = worker()
    own = federation.client(0)
    loader = [{"label": own.y[:5]}, {"label": own.y[5:]}]
    names: dict[str, Any] = {
        "torch": torch,
        "load_data": lambda *_: (loader, None),
        "my_samples": lambda number: (federation.client(number).x, federation.client(number).y),
        "Net": partial(build, "logistic", shape=tuple(own.x.shape[1:]), classes=10, seed=0),
        "target": federation.federation.target,
    }
    for block in code:
        if "grid" in block:
            names["grid"] = FakeGrid(names["app"], range(len(federation.federation.clients)))
            names["initial_arrays"] = ArrayRecord(dict(names["Net"]().state_dict()))
        exec(compile(block, str(ROOT / "docs" / "flower.md"), "exec"), names)
    context = names["grid"].contexts[names["grid"].node(0)]
    context.node_config["num-partitions"], context.run_config["batch-size"] = 5, 5
    assert names["labels"](context).tolist() == own.y.tolist()
    assert names["best"][0] >= 1
    assert set(names["arrays"]) == set(names["initial_arrays"])


def test_the_first_app_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two files, as modules of the names that the page gives them, with four nodes in this process."""
    client_code, server_code = blocks("docs/start/flower.md")
    for name, code in (("first", ""), ("first.client_app", client_code), ("first.server_app", server_code)):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(code, name, "exec"), module.__dict__)
    client, server = (sys.modules[f"first.{part}_app"] for part in ("client", "server"))
    context = Context(1, 0, {}, RecordDict(), {})
    output = StringIO()
    with redirect_stdout(output), torch.random.fork_rng():
        torch.manual_seed(0)  # the page's network starts at random
        server.app(grid=FakeGrid(client.app, range(4)), context=context)
    assert float(output.getvalue().split(":")[1]) > 0.5
