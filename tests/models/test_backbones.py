from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pooch
import pytest
import torch
from torch import nn

from fedpals.errors import InputError, MissingExtraError
from fedpals.models import BACKBONES, build, prepare
from fedpals.models.backbones import ImageNetColours, _torchvision_models, checkpoint, pretrained

IMAGES = np.random.default_rng(0).integers(256, size=(2, 3, 32, 32), dtype=np.uint8)


@pytest.fixture(params=list(BACKBONES))
def backbone(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def weights(backbone: str, mobilenet: Path, resnet: Path) -> Path:
    return {"mobilenet_v2": mobilenet, "resnet50": resnet}[BACKBONES[backbone].network]


def torchvisions(backbone: str, weights: Path) -> nn.Module:
    whole: nn.Module = _torchvision_models().get_model(BACKBONES[backbone].network, weights=None)
    whole.load_state_dict(torch.load(weights))
    return whole.eval()


@pytest.mark.parametrize("backbone", ["mobilenet_v2", "resnet50"])
def test_a_backbone_is_torchvisions_network_on_imagenets_colours(backbone: str, weights: Path) -> None:
    whole = torchvisions(backbone, weights)
    setattr(whole, BACKBONES[backbone].classifier, nn.Identity())
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    network = pretrained(backbone, checkpoint(backbone, weights)).eval()
    with torch.no_grad():
        expected = whole((torch.from_numpy(IMAGES) / 255 - mean) / deviation)
        found = network(prepare(IMAGES))
    assert found.shape == (2, BACKBONES[backbone].width)
    assert torch.allclose(found, expected, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("backbone", ["mobilenet_v2_blocks", "resnet50_blocks"])
def test_blocks_are_averaged_over_the_image_and_standardised_over_their_channels(backbone: str, weights: Path) -> None:
    whole, seen = torchvisions(backbone, weights), []
    for block in BACKBONES[backbone].blocks:
        whole.get_submodule(block).register_forward_hook(lambda _, __, output: seen.append(output.flatten(2).mean(2)))
    network = pretrained(backbone, checkpoint(backbone, weights)).eval()
    with torch.no_grad():
        whole(ImageNetColours()(prepare(IMAGES)))
        found = network(prepare(IMAGES))
    assert found.shape == (2, BACKBONES[backbone].width)
    expected = [
        (mean - mean.mean(1, keepdim=True)) / (mean.var(1, keepdim=True, correction=0) + 1e-5).sqrt() for mean in seen
    ]
    assert torch.allclose(found, torch.cat(expected, dim=1), atol=1e-3)


def test_a_fine_tuned_model_has_the_papers_head(backbone: str, weights: Path) -> None:
    before = torch.get_rng_state()
    one, changed = (build(backbone, shape=(3, 32, 32), classes=7, seed=seed, weights=weights) for seed in (0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    width = BACKBONES[backbone].width
    shapes = {name: tuple(values.shape) for name, values in one.named_parameters() if name.startswith("head.")}
    assert list(shapes.values()) == [(width, width), (width,), (7, width), (7,)]
    assert all(values.requires_grad and not values.is_meta for values in one.parameters())
    with torch.no_grad():
        assert one.eval()(prepare(IMAGES)).shape == (2, 7)
    for (name, a), (_, b) in zip(one.named_parameters(), changed.named_parameters(), strict=True):
        assert torch.equal(a, b) != name.startswith("head.")


def test_statistics_are_frozen_and_what_follows_them_is_trained(mobilenet: Path) -> None:
    model = build("mobilenet_v2", shape=(3, 32, 32), classes=7, seed=0, weights=mobilenet)
    layers = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    buffers = {name: values.clone() for name, values in model.named_buffers()}
    shifts = [layer.bias.detach().clone() for layer in layers]
    assert len(layers) == 52

    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for mode in (False, True):
        model.train(mode)
        assert model.training == mode
        assert not any(layer.training for layer in layers)
    nn.functional.cross_entropy(model(prepare(IMAGES)), torch.tensor([0, 1])).backward()  # type: ignore[no-untyped-call]
    optimiser.step()

    assert all(torch.equal(values, buffers[name]) for name, values in model.named_buffers())
    assert all(not torch.equal(layer.bias, shift) for layer, shift in zip(layers, shifts, strict=True))
    assert all(values.grad is not None and values.grad.any() for values in model.parameters())


def test_grey_images_stand_for_three_equal_channels(mobilenet: Path) -> None:
    model = build("mobilenet_v2", shape=(1, 32, 32), classes=7, seed=0, weights=mobilenet).eval()
    with torch.no_grad():
        grey, colour = model(prepare(IMAGES[:, :1])), model(prepare(IMAGES[:, [0, 0, 0]]))
    assert torch.allclose(grey, colour, atol=1e-5)
    for shape in ((4, 32, 32), (64,)):
        with pytest.raises(InputError, match="takes grey or colour images"):
            build("mobilenet_v2", shape=shape, classes=7, seed=0, weights=mobilenet)


def test_weights_are_found_where_data_sets_are(nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"what torchvision made"
    name = f"mobilenet_v2-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    monkeypatch.setitem(BACKBONES, "mobilenet_v2", replace(BACKBONES["mobilenet_v2"], file=name))
    monkeypatch.setenv("FEDPALS_DATA", str(tmp_path / "data"))
    for base in (nowhere, tmp_path / "data"):
        (base / "weights").mkdir(parents=True)
        (base / "weights" / name).write_bytes(content)
        assert checkpoint("mobilenet_v2", None).path == base / "weights" / name


def test_weights_are_downloaded_where_there_is_a_network(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def retrieve(url: str, *, path: Path, fname: str, **_: object) -> None:
        assert url == "https://download.pytorch.org/models/resnet50-0676ba61.pth"
        path.mkdir(parents=True)
        (path / fname).write_bytes(b"half of a file")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(InputError, match=r"resnet50-0676ba61.pth is damaged: .* begins with 0676ba61.* over 14 bytes"):
        checkpoint("resnet50", None)
    assert (nowhere / "weights" / "resnet50-0676ba61.pth").exists()


def test_absent_weights_say_where_they_were_looked_for_and_how_to_get_them(nowhere: Path) -> None:
    with pytest.raises(InputError) as caught:
        build("resnet50", shape=(3, 32, 32), classes=7, seed=0)
    message = str(caught.value)
    assert "https://download.pytorch.org/models/resnet50-0676ba61.pth could not be downloaded" in message
    assert "give the path of your copy as weights" in message
    assert f"Searched {nowhere}/weights, " in message


def test_weights_that_cannot_be_used_say_why(tmp_path: Path, mobilenet: Path) -> None:
    def attempt(path: Path, backbone: str = "mobilenet_v2") -> None:
        build(backbone, shape=(3, 32, 32), classes=7, seed=0, weights=path)

    with pytest.raises(InputError, match=r"absent.pth: weights of mobilenet_v2 cannot be read \(No such file"):
        attempt(tmp_path / "absent.pth")
    misnamed = tmp_path / "mobilenet_v2-b0353104.pth"
    misnamed.write_bytes(mobilenet.read_bytes())
    with pytest.raises(InputError, match=r"mobilenet_v2-b0353104.pth is damaged"):
        attempt(misnamed)
    with pytest.raises(InputError, match=r"does not hold the weights of torchvision's resnet50 \(Error"):
        attempt(mobilenet, "resnet50")

    shapes = torch.load(mobilenet)
    shapes["features.0.0.weight"] = torch.zeros(32, 1, 3, 3)
    torch.save(shapes, tmp_path / "grey.pth")
    with pytest.raises(InputError, match=r"size mismatch for features.0.0.weight"):
        attempt(tmp_path / "grey.pth")

    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(InputError, match="holds a list, not named tensors"):
        attempt(tmp_path / "list.pth")

    whole = mobilenet.read_bytes()
    for content in (b"", b"no checkpoint at all", whole[: len(whole) // 2], b"\x80\x02}q\x00."):
        (tmp_path / "broken.pth").write_bytes(content)
        with pytest.raises(InputError, match=r"broken.pth (cannot be read as a torch checkpoint|does not hold)"):
            attempt(tmp_path / "broken.pth")


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    torch.save({"a": Path("b")}, tmp_path / "code.pth")
    with pytest.raises(InputError, match="cannot be read as a torch checkpoint"):
        build("mobilenet_v2", shape=(3, 32, 32), classes=7, seed=0, weights=tmp_path / "code.pth")


def test_without_torchvision_the_extra_is_named(mobilenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torchvision", "torchvision.models"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedpals\[vision\]'"):
        build("mobilenet_v2", shape=(3, 32, 32), classes=7, seed=0, weights=mobilenet)
