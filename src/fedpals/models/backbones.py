"""ImageNet backbones: torchvision's networks without their classifier, and the files of their weights."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import textwrap
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedpals.data.official import OfficialFiles, ensure, search_path
from fedpals.errors import InputError, MissingExtraError

_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's colours, by which torchvision's weights expect images to be normalised."""


@dataclass(frozen=True)
class Backbone:
    """A torchvision network that gives one vector per image once its classifier is removed."""

    name: str
    network: str
    """torchvision's name of the network."""
    width: int
    """d, the length of that vector."""
    classifier: str
    """Name of the attribute with the classifier."""
    file: str
    """Name of the checkpoint; its digits are the first of the sha256 of its content."""
    blocks: tuple[str, ...] = ()
    """Names of the layers that `Blocks` averages; if empty, the vector is the input of the classifier."""

    @property
    def official(self) -> OfficialFiles:
        """Published file of its weights."""
        return OfficialFiles(
            name=self.network,
            folder="weights",
            checksums={self.file: ""},
            by_hand="copy it from a machine with network, or give the path of your copy as weights",
            downloads={f"https://download.pytorch.org/models/{self.file}": None},
        )


_RESNET = Backbone("resnet50", "resnet50", 2048, "fc", "resnet50-0676ba61.pth")
_MOBILENET = Backbone("mobilenet_v2", "mobilenet_v2", 1280, "classifier", "mobilenet_v2-b0353104.pth")
BACKBONES: Mapping[str, Backbone] = {
    backbone.name: backbone
    for backbone in (
        _RESNET,
        _MOBILENET,
        replace(_RESNET, name="resnet50_blocks", width=3840, blocks=tuple(f"layer{i}" for i in range(1, 5))),
        # Without the last layer of 1280 channels, which is the most specific to ImageNet's labels.
        replace(_MOBILENET, name="mobilenet_v2_blocks", width=1536, blocks=tuple(f"features.{i}" for i in range(18))),
    )
}


@dataclass(frozen=True)
class Checkpoint:
    """A file of weights with its content, so that the checked bytes are the ones that are used."""

    path: Path
    content: bytes = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """The sha256 of the content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


def checkpoint(backbone: str, weights: Path | None) -> Checkpoint:
    """Read the weights of a backbone and check them against the digits in the file's name.

    Parameters
    ----------
    backbone
        A name of `BACKBONES`.
    weights
        A torchvision checkpoint; unless given, the official file in a folder ``weights`` where data sets are
        searched for, downloaded if it is absent.

    Raises
    ------
    InputError
        If the file is absent, unreadable, or does not match the digits in its name.
    """
    if backbone not in BACKBONES:
        raise InputError(f"{backbone!r} is not a known backbone; they are {', '.join(BACKBONES)}")
    path = _official_path(backbone) if weights is None else weights.expanduser()
    try:
        result = Checkpoint(path, path.read_bytes())
    except OSError as error:
        raise InputError(
            f"{path}: weights of {backbone} cannot be read ({error.strerror}); give the path of a torchvision "
            f"checkpoint such as {BACKBONES[backbone].file}"
        ) from error
    expected = re.search(r"-([0-9a-f]{8,64})\.pth$", path.name)
    if expected and not result.digest.startswith(expected[1]):
        raise InputError(
            f"{path} is damaged: by its name its sha256 begins with {expected[1]}, but it is {result.digest} over "
            f"{len(result.content)} bytes. Delete it and get it again"
        )
    return result


def _official_path(backbone: str) -> Path:
    files = BACKBONES[backbone].official
    try:
        return ensure(files, download=True) / BACKBONES[backbone].file
    except InputError as error:
        places = ", ".join(str(base / files.folder) for base in search_path())
        raise InputError(f"{error}. Searched {places}") from error


def pretrained(backbone: str, weights: Checkpoint) -> nn.Sequential:
    """Return a backbone with its weights and without its classifier.

    It maps (n, C, H, W) images scaled by `fedpals.models.prepare`, grey or colour, to (n, d).

    Raises
    ------
    InputError
        If the checkpoint does not hold this network's weights.
    MissingExtraError
        If torchvision is not installed.
    """
    entry = BACKBONES[backbone]
    # The meta device skips the initialisation, which would be overwritten anyway.
    with torch.device("meta"):
        network: nn.Module = _torchvision_models().get_model(entry.network, weights=None)
    try:
        network.load_state_dict(_load_state(weights), assign=True)
    except RuntimeError as error:
        reason = textwrap.shorten(str(error), 200, placeholder="…")
        raise InputError(
            f"{weights.path} does not hold the weights of torchvision's {entry.network} ({reason}); give the path of "
            f"a checkpoint such as {entry.file}"
        ) from error
    if entry.blocks:
        network = Blocks(network, entry.blocks)
    else:
        setattr(network, entry.classifier, nn.Identity())
    return nn.Sequential(OrderedDict(colours=ImageNetColours(), network=network.float()))


def _load_state(weights: Checkpoint) -> Mapping[str, Any]:
    """Return the named tensors; unpickle nothing else, because a downloaded checkpoint must not run code."""
    try:
        state = torch.load(io.BytesIO(weights.content), map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError, AttributeError, LookupError) as error:
        raise InputError(f"{weights.path} cannot be read as a torch checkpoint; replace the file") from error
    if not isinstance(state, Mapping):
        raise InputError(f"{weights.path} holds a {type(state).__name__}, not named tensors; save a state_dict()")
    return state


class ImageNetColours(nn.Module):
    """Convert images from the scale of `fedpals.models.prepare`, −1 to 1, to that of ImageNet's weights.

    Grey images become three equal channels before the scaling.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (_MEAN, _DEVIATION))
        # Not persistent: constants are not part of a model's record.
        self.register_buffer("scale", 0.5 / deviation, persistent=False)
        self.register_buffer("shift", (0.5 - mean) / deviation, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (n, 1 or 3, H, W) to (n, 3, H, W)."""
        return images * self.scale + self.shift


class Blocks(nn.Module):
    """Features of all blocks of a network, from edges to objects, instead of the input of its classifier.

    A block's (n, c, h, w) outputs are averaged over the image and normalised to mean 0 and variance 1 over the c
    channels of each image, because the scales of blocks differ by a factor of 100. The vectors of all blocks are
    concatenated.
    """

    def __init__(self, network: nn.Module, blocks: tuple[str, ...]) -> None:
        super().__init__()
        from torchvision.models.feature_extraction import create_feature_extractor

        # Layers after the last block are not computed.
        self.blocks = create_feature_extractor(network, list(blocks))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (n, 3, H, W) to (n, d)."""
        means = (block.mean(dim=(2, 3)) for block in self.blocks(images).values())
        return torch.cat([nn.functional.layer_norm(mean, mean.shape[1:]) for mean in means], dim=1)


class FineTuned(nn.Sequential):
    """A backbone and a head; all parameters are trained, but not the statistics of batch normalisation.

    Clients' batches have other colours and labels than the target's, and averaged statistics fit neither.
    So the statistics of ImageNet stay, and only the scale and shift after them are learnt.
    """

    def train(self, mode: bool = True) -> FineTuned:  # noqa: FBT001, FBT002  (the signature is torch's)
        """Set the mode of all layers except batch normalisation, which stays in evaluation mode."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


def _torchvision_models() -> Any:
    """Import torchvision's models, even if its compiled operators do not fit the installed torch.

    In that case the import fails because of two operators for detection. They are never called here, so it is
    enough to declare them.
    """
    try:
        import torchvision.models as models
    except ModuleNotFoundError:
        raise MissingExtraError("an ImageNet backbone", "vision") from None
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        import torchvision.models as models
    return models
