from __future__ import annotations

import tomllib

import pytest

from fedpals import InputError
from fedpals.data.validation import validated
from fedpals.record import to_toml
from fedpals.run import Run


def test_equal_configurations_have_equal_folders_and_others_differ() -> None:
    base = Run(task="digits", method="fedavg")
    assert base.folder == Run(method="fedavg").folder
    others = [Run(method="fedavg", seed=1), Run(method="fedavg", rounds=3), Run(method="fedavg", labels_per_client=2)]
    assert len({base.folder, *(run.folder for run in others)}) == 4


def test_defaults_are_written_into_the_configuration() -> None:
    run = Run(task="pacs")
    assert (run.model, run.backbone, run.image_size, run.options) == ("head", "mobilenet_v2", 128, {"ess": 0.5})
    assert (Run(task="synthetic").model, Run(task="cifar10").model) == ("logistic", "cnn")
    assert Run(task="cifar10", backbone="mobilenet_v2").model == "head"
    assert Run(method="fedavg").options == {}


def test_a_configuration_survives_toml() -> None:
    run = Run(task="cifar10", beta=0.1, method="fedprox+fedpals", lam=float("inf"), proximal_weight=0.1)
    text = to_toml(run.model_dump(exclude_none=True))
    assert Run(**tomllib.loads(text)) == run


def test_names_for_people() -> None:
    assert Run(task="cifar10", beta=0.1, method="fedprox+fedpals", ess=0.5).title == "FedProx+FedPALS (ESS 0.5)"
    assert Run(task="cifar10", beta=0.1).task_name == "cifar10-beta0.1"
    assert Run(task="some/where/my data.npz", labels_per_client=2).task_name == "my_data-C2"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"round": 3}, "'round' is not a known key; did you mean 'rounds'"),
        ({"method": "fedpal"}, "did you mean 'fedpals'"),
        ({"target_estimate": "em"}, "target_estimate is 'em', which takes .* give held_out"),
        ({"target_estimate": "em", "held_out": 0.1, "target_noise": 0.1}, "give one"),
        ({"lam": 1, "ess": 0.5}, "give one of them"),
        ({"method": "fedavg", "ess": 0.5}, "ess is no option of the method 'fedavg'"),
        ({"rounds": 0}, "rounds is 0"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'"),
        ({"ess": 2}, "ess is 2"),
        ({"optimizer": "sgdd"}, "optimizer is 'sgdd'"),
    ],
)
def test_bad_configurations(keys: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        validated(Run, keys)
