"""Every Python block of docs/flower.md runs, on real images, in this process."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord

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


def test_the_method_in_training_md_is_the_package_s() -> None:
    (block,) = blocks("docs/training.md")
    assert block.strip() in (ROOT / "src" / "fedpals" / "methods" / "proximal.py").read_text(encoding="utf-8")
