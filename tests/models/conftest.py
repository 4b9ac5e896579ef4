"""Checkpoints of random weights, and a machine on which nothing is found or downloaded."""

from __future__ import annotations

from pathlib import Path

import pooch
import pytest
import torch

from fedpals.data import official
from fedpals.models.backbones import _torchvision_models


def save_random(path: Path, backbone: str) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.save(_torchvision_models().get_model(backbone, weights=None).state_dict(), path)
    return path


@pytest.fixture(scope="session")
def mobilenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random(tmp_path_factory.mktemp("weights") / "mobilenet_v2.pth", "mobilenet_v2")


@pytest.fixture(scope="session")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random(tmp_path_factory.mktemp("weights") / "resnet50.pth", "resnet50")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the weights of this machine and its network; returns the cache folder, which is empty."""
    monkeypatch.delenv("FEDPALS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(official, "DEBIAN", tmp_path / "debian")

    def unreachable(url: str, **_: object) -> None:
        raise OSError(f"no route to {url}")

    monkeypatch.setattr(pooch, "retrieve", unreachable)
    return tmp_path / "cache" / "fedpals"
