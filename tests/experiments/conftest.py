from __future__ import annotations

from pathlib import Path

import pytest

from fedpals.experiments.experiment import Experiment
from tests.data.conftest import iwildcam_like, nowhere

__all__ = ["iwildcam_like", "nowhere"]

TINY = """
title = "A tiny experiment"
source = "Table 0"

[run]
task = "digits"
model = "logistic"
clients = 4
samples_per_client = 30
rounds = 2

[grid]
learning_rate = [0.05, 0.2]

[tuning]
seeds = 1

[scale.desk]
seeds = 2

[scale.paper]
seeds = 3
run = { rounds = 4 }

[[row]]
name = "C = 2"
run = { labels_per_client = 2 }

[[row]]
name = "C = 3"
seeds = 1
run = { labels_per_client = 3 }

[[method]]
name = "FedAvg"
run = { method = "fedavg" }

[[method]]
name = "FedPALS"
run = { method = "fedpals" }
grid = { ess = [0.4, 0.8] }
"""
"""12 runs to tune with and 6 to report, of a fraction of a second each."""


@pytest.fixture
def tiny(tmp_path: Path) -> Experiment:
    return Experiment.read(definition(tmp_path, TINY))


def definition(folder: Path, text: str, name: str = "tiny") -> Path:
    """Write an experiment into a folder of experiments."""
    path = folder / "experiments" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
