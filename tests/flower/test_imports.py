"""Every message to a client starts a process: it loads what a client needs, and nothing of the server's."""

from __future__ import annotations

import subprocess
import sys

import fedpals.flower


def test_a_client_loads_nothing_of_the_server() -> None:
    code = "import sys; from fedpals.flower import Trainee, add_labelcounts, client_app; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    loaded = set(output.split())
    assert "fedpals.flower.client" in loaded
    unwanted = {"flower.rounds", "flower.methods", "engine.server", "engine.checkpoint", "data.task", "data.sources"}
    assert not loaded & {f"fedpals.{name}" for name in unwanted}


def test_every_public_name_is_there() -> None:
    for name in fedpals.flower.__all__:
        assert getattr(fedpals.flower, name).__name__ == name
    assert not hasattr(fedpals.flower, "Nonsense")
