"""A FLARE recipe for every method: the job from a model, a target and a training script."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from nvflare.app_opt.pt.file_model_persistor import PTFileModelPersistor
from nvflare.job_config.base_fed_job import BaseFedJob
from nvflare.job_config.script_runner import ScriptRunner
from nvflare.recipe.spec import Recipe
from torch import Tensor, nn

from fedpals.engine.protection import Protection
from fedpals.errors import InputError
from fedpals.methods import build_method, option_keys
from fedpals.nvflare.controller import LabelAwareController

_INITIAL = "initial.pt"


class FedPALSRecipe(Recipe):  # type: ignore[misc]  # FLARE is not typed
    """A job that trains ``model`` at ``sites`` for the label marginal ``target``.

    Every site gets an app of its own, and the server another one: in a job whose app is for all sites, FLARE sends the
    server's configuration, and T with it, to everyone.

    Parameters
    ----------
    model
        The network, or its state dict; training starts from exactly these parameters.
    target
        T, K probabilities. Stays on the server, unless ``tell_target``. None for methods that do not use it.
    sites
        Names of the sites, as they are provisioned.
    num_rounds
        Number of rounds.
    train_script
        Script that runs at the sites: your own, with `send_label_counts`, or one that calls `run_client`.
    train_args
        Arguments of the script.
    method
        Name of the method, such as ``fedpals`` or ``scaffold+fedpals``.
    name
        Name of the job.
    min_clients
        Number of sites that must have sent their label counts; all unless given.
    participation, seed
        Share of the sites that are drawn in a round, and the seed of the draw.
    train_timeout, counts_timeout
        Seconds after which a site that has not answered is left out, until it answers.
    patience
        Seconds without news after which sites that have not sent their label counts are left out, until they do, as
        long as the others are ``min_clients``; longer where answers take longer.
    max_samples
        Largest number of samples that a site can count for.
    server_momentum
        Share of its last step that the global model repeats in every round.
    averaging
        Decay of the running mean of the global models, which is saved instead of the last model.
    tell_target
        Whether sites may find out T, for the methods that weigh their samples by it (IW-ERM).
    settings
        Options of the method, as ``ess=0.5``; keys of `fedpals.engine.protection.Protection` (docs/privacy.md), as
        ``clip_update=1.0``; and arguments of FLARE's ``ScriptRunner``, as ``launch_external_process=True``.
    """

    def __init__(
        self,
        *,
        model: nn.Module | Mapping[str, Tensor],
        target: npt.ArrayLike | None = None,
        sites: Sequence[str],
        num_rounds: int,
        train_script: str,
        train_args: str = "",
        method: str = "fedpals",
        name: str = "fedpals",
        min_clients: int | None = None,
        participation: float = 1.0,
        seed: int = 0,
        train_timeout: int = 3600,
        counts_timeout: int = 600,
        patience: float = 30.0,
        max_samples: int | None = None,
        server_momentum: float | None = None,
        averaging: float | None = None,
        tell_target: bool = False,
        **settings: Any,
    ) -> None:
        if not sites or len(set(sites)) < len(sites):
            raise InputError(f"sites is {list(sites)}; it must be the names of the sites, each once")
        if min_clients is not None and not 1 <= min_clients <= len(sites):
            raise InputError(f"min_clients is {min_clients}; it must be between 1 and the {len(sites)} sites")
        if not Path(train_script).is_file():
            raise InputError(f"train_script is {train_script}, which is no file here")
        needed = len(sites) if min_clients is None else min_clients
        keys = option_keys().keys()
        options = {key: value for key, value in settings.items() if key in keys}
        protection = {key: value for key, value in settings.items() if key in Protection.model_fields}
        runner = {key: value for key, value in settings.items() if key not in keys and key not in protection}
        build_method(method, options)
        controller = LabelAwareController(
            method=method,
            options=options,
            target=None if target is None else np.asarray(target, dtype=np.float64).tolist(),
            num_rounds=num_rounds,
            min_clients=needed,
            participation=participation,
            seed=seed,
            train_timeout=train_timeout,
            counts_timeout=counts_timeout,
            patience=patience,
            max_samples=max_samples,
            server_momentum=server_momentum,
            averaging=averaging,
            protection=protection,
            tell_target=tell_target,
        )
        # Without a metric: the best round at the sites is not the best in the target.
        job = BaseFedJob(name=name, min_clients=needed, key_metric="")
        job.set_app_packages(["fedpals"])  # it is installed at the sites, as FLARE is
        job.to_server(controller)
        job.to_server(PTFileModelPersistor(source_ckpt_file_full_name=_INITIAL), id="persistor")
        initial = Path(mkdtemp(prefix="fedpals-"), _INITIAL)  # FLARE copies it when the job is run or exported
        weakref.finalize(self, shutil.rmtree, initial.parent, ignore_errors=True)
        torch.save(dict(model.state_dict() if isinstance(model, nn.Module) else model), initial)
        job.add_file_to_server(str(initial))
        for site in sites:
            job.to(ScriptRunner(script=train_script, script_args=train_args, **runner), site)
        super().__init__(job)
