"""Three hospitals train a model for a fourth on NVIDIA FLARE: all that the server knows of it is its share of sick.

fedpals data get heart
python examples/nvflare/job.py                  # in FLARE's simulator
python examples/nvflare/job.py --poc            # with real processes and certificates: a server and three sites
python examples/nvflare/job.py --poc --compare  # and say whether the parameters are those of fedpals' own simulator
python examples/nvflare/job.py --export         # write the job to submit it in production
"""

import argparse
import tempfile
from pathlib import Path

import torch
from client import hospitals, names
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.sim_env import SimEnv

from fedpals.nvflare import FedPALSRecipe
from fedpals.simulation.simulator import simulate
from fedpals.simulation.state import SimulationState

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--target", default="Switzerland", help="hospital that the model is for")
parser.add_argument("--method", default="fedpals", help="as fedavg or scaffold+fedpals")
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--poc", action="store_true", help="real processes instead of the simulator")
parser.add_argument("--compare", action="store_true", help="compare the parameters with those of fedpals' simulator")
arguments = parser.parse_args()

worker = hospitals(arguments.target, arguments.rounds)
sites = names(worker)
options = {"ess": 0.5} if "fedpals" in arguments.method else {}
recipe = FedPALSRecipe(
    model=worker.model.network,
    target=worker.federation.target,
    method=arguments.method,
    sites=sites,
    num_rounds=arguments.rounds,
    train_script=str(Path(__file__).with_name("client.py")),
    train_args=f"{arguments.target} {arguments.rounds}",
    **options,
)
with tempfile.TemporaryDirectory() as folder:
    env = (
        PocEnv(clients=sites, num_clients=len(sites)) if arguments.poc else SimEnv(clients=sites, workspace_root=folder)
    )
    try:
        result = recipe.execute(env).get_result(clean_up=False)
        saved = torch.load(next(Path(result).rglob("FL_global_model.pt")))["model"]
    finally:
        env.stop(clean_up=True)

worker.model.network.load_state_dict({key: torch.as_tensor(value) for key, value in saved.items()})
x, y = worker.samples(worker.federation.test)  # which only this example can know
right = (worker.model.logits(x).argmax(1) == y).double().mean()
print(f"{arguments.method}: {right:.1%} of the {len(y)} patients at {arguments.target} are classified correctly")

if arguments.compare:
    with tempfile.TemporaryDirectory() as folder:
        run = hospitals(arguments.target, arguments.rounds, method=arguments.method, **options).run
        own = SimulationState.load(simulate(run, Path(folder)).checkpoint).vector
    bits, own_bits = (vector.view(torch.int32).long() for vector in (worker.model.vector, own))
    same = int((bits == own_bits).sum())
    print(f"{same} of {own.numel()} parameters have the bits of fedpals' own simulator; the largest difference is "
          f"{(bits - own_bits).abs().max()} units in the last place")  # fmt: skip
