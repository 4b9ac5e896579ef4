from __future__ import annotations

import tomllib

import pytest

from fedpals import InputError
from fedpals.config import to_toml
from fedpals.simulation.run import Run


def test_equal_configurations_have_equal_folders_and_others_differ() -> None:
    base = Run.of(task="digits", method="fedavg")
    assert base.folder == Run.of(method="fedavg").folder
    others = [
        Run.of(method="fedavg", seed=1),
        Run.of(method="fedavg", rounds=3),
        Run.of(method="fedavg", labels_per_client=2),
    ]
    assert len({base.folder, *(run.folder for run in others)}) == 4


def test_defaults_are_written_into_the_configuration() -> None:
    run = Run.of(task="pacs")
    network = run.network
    assert (network.model, network.backbone, network.image_size) == ("head", "mobilenet_v2", 128)
    assert run.method.options == {"ess": 0.5}
    assert (Run.of(task="synthetic").network.model, Run.of(task="cifar10").network.model) == ("logistic", "cnn")
    assert Run.of(task="cifar10", backbone="mobilenet_v2").network.model == "head"
    assert Run.of(method="fedavg").method.options == {}


def test_a_configuration_survives_toml() -> None:
    run = Run.of(task="cifar10", beta=0.1, method="fedprox+fedpals", lam=float("inf"), proximal_weight=0.1)
    text = to_toml(run.keys())
    assert Run.of(**tomllib.loads(text)) == run


def test_names_for_people() -> None:
    run = Run.of(task="cifar10", beta=0.1, method="fedprox+fedpals", ess=0.5)
    assert run.method.full_title == "FedProx+FedPALS (ESS 0.5)"
    assert Run.of(task="cifar10", beta=0.1).data.name == "cifar10-beta0.1"
    assert Run.of(task="some/where/my data.npz", labels_per_client=2).data.name == "my_data-C2"


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
        Run.of(keys)
