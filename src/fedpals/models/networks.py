"""Networks that a run can train, by name, and the scaling of their inputs.

To add a network, write a function of (shape, classes) that returns its layers, and a line in `MODELS`.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedpals import rng
from fedpals.errors import InputError
from fedpals.models.backbones import BACKBONES, FineTuned, checkpoint, pretrained
from fedpals.models.compiled.network import SmallCNN

Shape: TypeAlias = tuple[int, ...]
"""Shape of one sample: (C, H, W) or (d,)."""
Layers: TypeAlias = Callable[[Shape, int], nn.Module]
Builder: TypeAlias = Callable[[Shape, int, torch.Generator, Path | None], nn.Module]


def build(name: str, *, shape: Shape, classes: int, seed: int, weights: Path | None = None) -> nn.Module:
    """Build a model that maps prepared samples (n, ...shape) to (n, classes) logits.

    Parameters
    ----------
    name
        A name of `MODELS`, or ``package.module:function`` for your own class or function, as for `build_own`.
    shape
        Shape of one sample: (C, H, W) or (d,).
    classes
        K, the number of labels.
    seed
        Seed of all initial values; torch's global generator is neither used nor changed.
    weights
        ImageNet weights for a backbone, a torchvision checkpoint; searched for unless given.

    Raises
    ------
    InputError
        If the name is unknown, the model does not fit the samples, or the weights are not found.

    Examples
    --------
    >>> build("logistic", shape=(1, 8, 8), classes=10, seed=0)
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=64, out_features=10, bias=True)
    )
    """
    if ":" in name:
        if weights is not None:
            raise InputError(f"weights is {weights}, but {name} is your own model; load its weights in the function")
        return _build_imported(name, shape, classes, seed)
    if name not in MODELS:
        raise InputError(f"model is {name!r}; it is one of {', '.join(MODELS)}, or your own package.module:function")
    generator = torch.Generator().manual_seed(rng.integer_seed(seed, "model"))
    return MODELS[name](shape, classes, generator, weights).train()


def prepare(x: npt.NDArray[Any]) -> torch.Tensor:
    """Scale samples for any of the models.

    Images (n, C, H, W) of bytes become float32 from −1 to 1, (x/255 − 0.5)/0.5, with the channels last in
    memory, which is fastest for convolutions on a CPU. Vectors (n, d) and images of floats become float32 without
    scaling; vectors may share memory with ``x``.

    >>> prepare(np.array([[[[0, 51, 255]]]], dtype=np.uint8))
    tensor([[[[-1.0000, -0.6000,  1.0000]]]])
    """
    if x.dtype == np.uint8 and x.ndim == 4:
        images = torch.empty(x.shape, memory_format=torch.channels_last)
        # numpy casts and transposes in small buffers here; the subtraction is exact.
        values = images.numpy()
        np.subtract(x, np.float32(127.5), out=values)
        values /= np.float32(127.5)
        return images
    if np.issubdtype(x.dtype, np.floating) and x.ndim in (2, 4):
        numbers = torch.from_numpy(np.require(x, dtype=np.float32, requirements=["C", "W"]))
        return numbers if x.ndim == 2 else numbers.contiguous(memory_format=torch.channels_last)
    raise InputError(
        f"samples are {x.dtype} of shape {x.shape}; models take images, uint8 or float (n, C, H, W), or vectors, "
        "float (n, d)"
    )


def logistic(shape: Shape, classes: int) -> nn.Module:
    """Return the layers of logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def head(shape: Shape, classes: int) -> nn.Module:
    """Return the layers of the paper's head for vectors, d → d → K."""
    width = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Return the layers of a small network for tables: d → 64 → 64 → K."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Return the layers of the paper's small network: two 5×5 convolutions and three linear layers.

    There is no padding for sides of at least 16. Images with a shorter side get 2 pixels of padding at both
    convolutions, which then keep the size: 8×8 becomes 16 maps of 2×2, and the smallest side is 4.
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise InputError(
            f"cnn takes images (C, H, W) of at least 4×4; the samples are {_format_shape(shape)}: use logistic or head"
        )
    return SmallCNN(shape, classes)


def _initialise(layers: Layers, shape: Shape, classes: int, generator: torch.Generator) -> nn.Module:
    """Build a network with parameters from torch's default distributions, drawn from ``generator``."""
    with torch.random.fork_rng(devices=[]):  # torch's constructors draw from the global generator
        network = layers(shape, classes)
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5), generator=generator)
            if module.bias is not None:
                bound = 1 / math.sqrt(module.weight[0].numel())
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)
    return network


def _build_fresh(
    layers: Layers, shape: Shape, classes: int, generator: torch.Generator, weights: Path | None
) -> nn.Module:
    if weights is not None:
        raise InputError(f"weights is {weights}, but only a backbone takes weights: {', '.join(BACKBONES)}")
    return _initialise(layers, shape, classes, generator)


def _build_fine_tuned(
    backbone: str, shape: Shape, classes: int, generator: torch.Generator, weights: Path | None
) -> nn.Module:
    if len(shape) != 3 or shape[0] not in {1, 3}:
        raise InputError(
            f"{backbone} takes grey or colour images (C, H, W), and the samples are {_format_shape(shape)}"
        )
    network = pretrained(backbone, checkpoint(backbone, weights))
    new_head = _initialise(head, (BACKBONES[backbone].width,), classes, generator)
    return FineTuned(OrderedDict(backbone=network, head=new_head))


def _from_zero(
    layers: Layers, shape: Shape, classes: int, generator: torch.Generator, weights: Path | None
) -> nn.Module:
    """Build a network with all parameters 0, so that inputs without information have no influence."""
    network = _build_fresh(layers, shape, classes, generator, weights)
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    return network


MODELS: Mapping[str, Builder] = {
    "logistic": partial(_build_fresh, logistic),
    "linear": partial(_from_zero, logistic),
    "mlp": partial(_build_fresh, mlp),
    "cnn": partial(_build_fresh, cnn),
    "head": partial(_build_fresh, head),
    **{backbone: partial(_build_fine_tuned, backbone) for backbone in BACKBONES},
}


def build_own(
    function: Callable[..., Any], *, shape: Shape, classes: int, seed: int, name: str | None = None
) -> nn.Module:
    """Build a user's network, and try it on one sample before a long run.

    ``function`` is a class or function that takes ``shape`` and ``classes``, or nothing. Initial values are
    drawn from torch's generator, which is seeded for the call and restored afterwards.
    """
    name = name or str(getattr(function, "__name__", type(function).__name__))
    if isinstance(function, nn.Module):
        raise InputError(
            f"model is an object of {name}; give the class or a function, so that each run can build its own"
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.integer_seed(seed, "model"))
        model = _call(function, name, shape, classes)
        if not isinstance(model, nn.Module):
            raise InputError(f"model {name} returned a {type(model).__name__}; return a torch.nn.Module")
        _try_model(name, model.eval(), shape, classes)
    return model.train()


def _call(function: Callable[..., Any], name: str, shape: Shape, classes: int) -> Any:
    """Call a user's function with shape and classes, by name or by position, or without arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise InputError(f"model {name} cannot be called ({error}); give a class or a function") from None
    calls: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
        ((), {"shape": shape, "classes": classes}),
        ((shape, classes), {}),
        ((), {}),
    )
    for arguments, keywords in calls:
        try:
            signature.bind(*arguments, **keywords)
        except TypeError:
            continue
        try:
            return function(*arguments, **keywords)
        except Exception as error:
            raise InputError(f"model {name} raised {type(error).__name__}: {error}; fix it") from error
    raise InputError(f"model {name}{signature} needs other arguments; let it take (shape, classes), or nothing")


def check_trust(name: str, where: Path, *, trust: bool) -> None:
    """Refuse a network ``package.module:function`` that a file names, unless the user trusts the file to run code."""
    if ":" in name and not trust:
        raise InputError(
            f"{where}: its network is {name}, and to open it runs that code; if you know where both come from, "
            "give --trust (trust=True in Python)"
        )


def _build_imported(name: str, shape: Shape, classes: int, seed: int) -> nn.Module:
    return build_own(_import_function(name), shape=shape, classes=classes, seed=seed, name=name)


def _import_function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise InputError(f"model is {name!r}; your own is written package.module:function")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise InputError(
            f"model {name}: cannot import {module} ({error}); install it, or set PYTHONPATH to its folder"
        ) from error
    except AttributeError as error:
        raise InputError(f"model {name}: {module} has no {attribute}") from error
    except Exception as error:
        raise InputError(f"model {name}: {module} raised {type(error).__name__}: {error}; fix it") from error
    if not callable(function):
        raise InputError(f"model {name}: {attribute} is a {type(function).__name__}, not a function")
    return function


def _try_model(name: str, model: nn.Module, shape: Shape, classes: int) -> None:
    remedy = f"it must map samples of shape {_format_shape(shape)} to {classes} numbers each"
    try:
        with torch.no_grad():
            output = model(torch.zeros(1, *shape))
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"model {name} failed on one sample ({reason}); {remedy}") from error
    output_shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if output_shape != (1, classes):
        raise InputError(f"model {name} gave {output_shape} for one sample, not {(1, classes)}; {remedy}")


def _format_shape(shape: Shape) -> str:
    return "×".join(map(str, shape))
