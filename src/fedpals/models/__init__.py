"""Models: the paper's networks, ImageNet backbones, users' own, and features computed once.

>>> from fedpals.models import build
>>> model = build("cnn", shape=(3, 32, 32), classes=10, seed=0)
>>> sum(parameter.numel() for parameter in model.parameters())
62006
"""

from fedpals.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401  (first, so that its absence is reported here)
except ModuleNotFoundError:
    raise MissingExtraError("building models", "learn") from None

from fedpals.models.backbones import BACKBONES, Backbone
from fedpals.models.features import embed, features
from fedpals.models.networks import MODELS, build, build_own, check_trust, prepare

__all__ = ["BACKBONES", "MODELS", "Backbone", "build", "build_own", "check_trust", "embed", "features", "prepare"]
