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
"""Of ImageNet's colours, which torchvision's weights expect to be taken out."""


@dataclass(frozen=True)
class Backbone:
    """A torchvision network that gives one vector per image once its classifier is taken off."""

    name: str
    network: str
    """As torchvision calls the network."""
    width: int
    """d, the length of that vector."""
    classifier: str
    """The attribute that holds the classifier."""
    file: str
    """The checkpoint; the digits in its name begin the sha256 of its content."""
    blocks: tuple[str, ...] = ()
    """The layers that `Blocks` averages; without any, the vector is what the classifier would see."""

    @property
    def official(self) -> OfficialFiles:
        """Where its weights are published."""
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
        # Without the layer after them, of 1280 channels: it knows ImageNet's labels best and other images worst.
        replace(_MOBILENET, name="mobilenet_v2_blocks", width=1536, blocks=tuple(f"features.{i}" for i in range(18))),
    )
}


@dataclass(frozen=True)
class Checkpoint:
    """A file of weights, read whole: what is used is what was checked."""

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
        A torchvision checkpoint; unless given, the official file from the folder ``weights`` in a
        place where data sets are searched for, downloaded where it is absent.

    Raises
    ------
    InputError
        Where the file is absent, unreadable or not what its name says.
    """
    if backbone not in BACKBONES:
        raise InputError(f"{backbone!r} is not a known backbone; they are {', '.join(BACKBONES)}")
    path = _official(backbone) if weights is None else weights.expanduser()
    try:
        found = Checkpoint(path, path.read_bytes())
    except OSError as error:
        raise InputError(
            f"{path}: weights of {backbone} cannot be read ({error.strerror}); give the path of a torchvision "
            f"checkpoint such as {BACKBONES[backbone].file}"
        ) from error
    promised = re.search(r"-([0-9a-f]{8,64})\.pth$", path.name)
    if promised and not found.digest.startswith(promised[1]):
        raise InputError(
            f"{path} is damaged: by its name its sha256 begins with {promised[1]}, but it is {found.digest} over "
            f"{len(found.content)} bytes. Delete it and get it again"
        )
    return found


def _official(backbone: str) -> Path:
    files = BACKBONES[backbone].official
    try:
        return ensure(files, download=True) / BACKBONES[backbone].file
    except InputError as error:
        places = ", ".join(str(base / files.folder) for base in search_path())
        raise InputError(f"{error}. It was looked for in {places}") from error


def pretrained(backbone: str, weights: Checkpoint) -> nn.Sequential:
    """Return a backbone with its weights and without its classifier.

    It maps (n, C, H, W) images as `fedpals.models.prepare` makes them, grey or in colour, to (n, d).

    Raises
    ------
    InputError
        Where the checkpoint does not hold this network's weights.
    MissingExtraError
        Without torchvision.
    """
    known = BACKBONES[backbone]
    # On the meta device nothing is initialised, so that nothing is drawn only to be overwritten.
    with torch.device("meta"):
        network: nn.Module = _torchvision_models().get_model(known.network, weights=None)
    try:
        network.load_state_dict(_state(weights), assign=True)
    except RuntimeError as error:
        reason = textwrap.shorten(str(error), 200, placeholder="…")
        raise InputError(
            f"{weights.path} does not hold the weights of torchvision's {known.network} ({reason}); give the path of "
            f"a checkpoint such as {known.file}"
        ) from error
    if known.blocks:
        network = Blocks(network, known.blocks)
    else:
        setattr(network, known.classifier, nn.Identity())
    return nn.Sequential(OrderedDict(colours=ImageNetColours(), network=network.float()))


def _state(weights: Checkpoint) -> Mapping[str, Any]:
    """Unpickle tensors and nothing else: a checkpoint from elsewhere must not run code."""
    try:
        state = torch.load(io.BytesIO(weights.content), map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError, AttributeError, LookupError) as error:
        raise InputError(f"{weights.path} cannot be read as a torch checkpoint; replace the file") from error
    if not isinstance(state, Mapping):
        raise InputError(f"{weights.path} holds a {type(state).__name__}, not named tensors; save a state_dict()")
    return state


class ImageNetColours(nn.Module):
    """Take images from the scale of `fedpals.models.prepare`, −1 to 1, to that of ImageNet's weights.

    Grey images come out with three equal channels before the scaling.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (_MEAN, _DEVIATION))
        # Not persistent: constants are no part of a model's record.
        self.register_buffer("scale", 0.5 / deviation, persistent=False)
        self.register_buffer("shift", (0.5 - mean) / deviation, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (n, 1 or 3, H, W) to (n, 3, H, W)."""
        return images * self.scale + self.shift


class Blocks(nn.Module):
    """What all blocks of a network see, from edges to objects, in place of what its classifier would.

    A block's (n, c, h, w) outputs are averaged over the image and brought to mean 0 and variance 1 over the c channels
    of each image, because blocks differ in scale a hundredfold; the vectors of all blocks are joined.
    """

    def __init__(self, network: nn.Module, blocks: tuple[str, ...]) -> None:
        super().__init__()
        from torchvision.models.feature_extraction import create_feature_extractor

        # What comes after the last block is not computed.
        self.blocks = create_feature_extractor(network, list(blocks))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (n, 3, H, W) to (n, d)."""
        means = (block.mean(dim=(2, 3)) for block in self.blocks(images).values())
        return torch.cat([nn.functional.layer_norm(mean, mean.shape[1:]) for mean in means], dim=1)


class FineTuned(nn.Sequential):
    """A backbone and a head, of which everything is trained but the statistics of batch normalisation.

    Clients' batches have other colours and labels than the target's, and averaged statistics fit
    neither: those of ImageNet stay, and only the scale and shift after them are learnt.
    """

    def train(self, mode: bool = True) -> FineTuned:  # noqa: FBT001, FBT002  (the signature is torch's)
        """Set the mode of all layers but batch normalisation, which stays as in evaluation."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


def _torchvision_models() -> Any:
    """Import torchvision's models, also where its compiled operators do not fit the installed torch.

    Then the import fails over two operators for detection, which nothing here calls: it is enough
    that they are declared.
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
