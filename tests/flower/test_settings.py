"""Every method has a strategy, and settings that no run can use are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedpals.errors import InputError
from fedpals.flower import (
    AFL,
    IWERM,
    SCAFFOLD,
    FedAvg,
    FedDisco,
    FedLC,
    FedPALS,
    FedProx,
    FedRS,
    FedRSBinary,
    FedSGD,
    LabelAware,
    LogitAdjusted,
    strategy,
)
from fedpals.methods import METHODS, build_method
from tests.flower.scene import TARGET, four

SIBLINGS: dict[str, Callable[[], LabelAware]] = {
    "fedpals": lambda: FedPALS(TARGET),
    "fedavg": FedAvg,
    "fedsgd": FedSGD,
    "fedprox": lambda: FedProx(proximal_weight=0.3),
    "scaffold": lambda: SCAFFOLD(server_step=0.5),
    "fedrs_graded": lambda: FedRS(absent_factor=0.1),
    "fedrs_binary": lambda: FedRSBinary(absent_factor=0.1),
    "fedlc": lambda: FedLC(calibration=0.5),
    "iwerm": lambda: IWERM(TARGET, importance_source="pooled", importance_clip=5.0, tell_target=True),
    "feddisco": lambda: FedDisco(TARGET, discrepancy_weight=0.2, discrepancy_offset=0.0),
    "logit_adjusted": lambda: LogitAdjusted(adjustment=0.5),
    "afl": lambda: AFL(mixture_step=0.2),
}


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"oracle", "pooled"}))
def test_every_method_has_a_sibling_of_its_name(name: str) -> None:
    sibling = SIBLINGS[name]().method
    options = {**vars(sibling.rule), **{k: v for k, v in vars(sibling.weighting).items() if v is not None}}
    method = build_method(name, options)  # with all options given
    assert replace(sibling, options={}) == replace(method, options={})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: strategy("fedpals", ess=0.5), "FedPALS needs target"),
        (lambda: FedPALS([0.5, 0.6]), "target sums to 1.1"),
        (lambda: strategy("oracle", TARGET), "oracle redraws the clients"),
        (lambda: strategy("pooled", TARGET), "pooled puts all samples in one place"),
        (lambda: strategy("feddisco"), "FedDisco needs target"),
        (lambda: IWERM(tell_target=True), "IW-ERM needs target"),
        (lambda: strategy("iwerm+fedpals", TARGET), r"IW-ERM\+FedPALS tells every client what T is.*tell_target=True"),
        (lambda: strategy("fedavg", TARGET, ess=0.5), "ess is no option of the method 'fedavg'"),
        (lambda: FedRS(absent_factor=2.0), "absent_factor is 2.0; it must be less than or equal to 1"),
        (lambda: FedPALS(TARGET, ess=0.5, lam=1.0), "give one of them"),
        (lambda: FedAvg().prior_shift, "available after the first round"),
        (lambda: FedAvg(max_samples=0), "max_samples is 0"),
        (lambda: FedAvg(fraction_train=0.0), "fraction_train is 0.0"),
        (lambda: FedAvg().start(four(), ArrayRecord({"n": Array(np.array(1))})), "no floating-point array"),
        (lambda: FedAvg().start(four(), ArrayRecord({"z": Array(np.array(1j))})), "'z' is complex"),
    ],
)
def test_settings_that_no_run_can_use(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
