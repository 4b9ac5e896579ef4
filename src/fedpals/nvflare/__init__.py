"""FedPALS and its baselines on NVIDIA FLARE: a recipe, its controller, and both kinds of client scripts.

Weights, client rules and checks are the simulator's; this package sends them as FLARE's tasks.

    recipe = FedPALSRecipe(model=Net(), target=T, ess=0.5, sites=[...], num_rounds=10, train_script="client.py")
    if send_label_counts(counts): continue                 # one line in the script's loop
"""

try:
    import nvflare  # noqa: F401
except ImportError:
    from fedpals.errors import MissingExtraError

    raise MissingExtraError("fedpals.nvflare", "nvflare") from None

from fedpals.engine.trainee import Trainee
from fedpals.nvflare.client import run_client, send_label_counts
from fedpals.nvflare.controller import LabelAwareController
from fedpals.nvflare.recipe import FedPALSRecipe
from fedpals.nvflare.rounds import TooFewSitesError

__all__ = [
    "FedPALSRecipe",
    "LabelAwareController",
    "TooFewSitesError",
    "Trainee",
    "run_client",
    "send_label_counts",
]
