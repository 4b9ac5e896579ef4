"""The `fedpals` command: parse, call, print. One module per command."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

import fedpals
from fedpals.cli import data, flower
from fedpals.cli.check import check
from fedpals.cli.demo import demo
from fedpals.cli.estimate_target import estimate_target
from fedpals.cli.flags import with_run_flags
from fedpals.cli.help import Command, examples
from fedpals.cli.predict import predict
from fedpals.cli.report import report
from fedpals.cli.reproduce import reproduce
from fedpals.cli.run import run
from fedpals.cli.terminal import escape, new_console, print_anything
from fedpals.cli.tune import tune
from fedpals.cli.watch import watch
from fedpals.cli.weights import weights
from fedpals.errors import FedpalsError

for plugin in entry_points(group="fedpals.methods"):
    plugin.load()  # registers methods, whose options become flags

app = typer.Typer(
    name="fedpals",
    help="Federated learning for a target whose label distribution differs from the clients'.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fedpals {fedpals.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated learning for a target whose label distribution differs from the clients'."""


app.command(
    cls=Command,
    epilog=examples(
        "fedpals weights stores.csv --target new-store.csv",
        "fedpals weights stores.csv --target new-store.csv --ess 0.25 --plot weights.png",
        "fedpals weights stores.csv --target new-store.csv --grid 4",
        "fedpals weights stores.csv --target new-store.csv --explore explorer.html",
        "fedpals weights stores.csv --target new-store.csv --lam 0 --json > weights.json",
    ),
)(weights)

app.command(
    cls=Command,
    epilog=examples(
        "fedpals run --task fashion-mnist --labels-per-client 3 --method fedpals --ess 0.5 --seeds 8 --workers 2",
        "fedpals run --task digits --method fedavg,fedprox+fedpals --rounds 40",
        "fedpals run --task hospitals.npz --client-key hospital --target T.csv --seeds 5",
        "fedpals run --task patients.csv --label-column diagnosis --client-column hospital --target-client Hungary",
        "fedpals run config.toml --out runs",
    ),
)(with_run_flags(run))
app.command(
    cls=Command,
    epilog=examples(
        "fedpals tune --task fashion-mnist --labels-per-client 3 --workers 2",
        "fedpals tune --task digits --model logistic --held-out 0.2 --grid 6 --correction raw",
        "fedpals tune config.toml --method fedprox+fedpals",
    ),
)(with_run_flags(tune))
app.command(
    cls=Command,
    epilog=examples(
        "fedpals check runs/digits-C3/fedpals-ess0.5/0-1a2b3c4d",
        "fedpals check runs/digits-C3/fedpals-ess0.5/0-1a2b3c4d --json > check.json",
    ),
)(check)
app.command(
    cls=Command,
    epilog=examples(
        "fedpals estimate-target runs/digits-C3/fedpals-ess0.5/0-1a2b3c4d",
        "fedpals estimate-target runs/digits-C3/fedpals-ess0.5/0-1a2b3c4d unlabelled.npz -o target.csv",
        "fedpals estimate-target runs/pacs/fedpals-ess0.5/0-1a2b3c4d photos/ --by em --json > target.json",
    ),
)(estimate_target)
app.command(
    cls=Command,
    epilog=examples(
        "fedpals predict runs/hospitals/fedpals-ess0.5/0-1a2b3c4d new-patients.csv -o predictions.csv",
        "fedpals predict runs/hospitals/fedpals-ess0.5/0-1a2b3c4d new.npz --target other-T.csv",
        "fedpals predict model.safetensors images/",
    ),
)(predict)
app.command(cls=Command, epilog=examples("fedpals demo", "fedpals demo --seeds 5 --workers 4"))(demo)
app.command(
    cls=Command,
    epilog=examples(
        "fedpals reproduce --list",
        "fedpals reproduce synthetic",
        "fedpals reproduce table1 --scale desk --workers 2",
        "fedpals reproduce table1 --scale paper --ray 10.0.0.5:6379 --results results-paper",
    ),
)(reproduce)
app.command(
    cls=Command,
    epilog=examples(
        "fedpals report results/table1 -o report",
        "fedpals report results",
        "fedpals report runs -o out/report",
    ),
)(report)
app.command(
    cls=Command,
    epilog=examples("fedpals watch runs", "fedpals watch runs --port 0", "fedpals watch flower-record"),
)(watch)

_data = typer.Typer(rich_markup_mode="rich")
_data.callback(
    invoke_without_command=True,
    epilog=examples(
        "fedpals data",
        "fedpals data get fashion-mnist",
        "fedpals data show digits",
    ),
)(data.overview)
_data.command(
    cls=Command,
    epilog=examples(
        "fedpals data get fashion-mnist",
        "fedpals data get cifar10 --folder ~/data",
    ),
)(data.get)
_data.command(
    cls=Command,
    epilog=examples(
        "fedpals data show digits",
        "fedpals data show cifar10 --labels-per-client 6 --plot marginals.png",
        "fedpals data show fashion-mnist --beta 0.1 --clients 100 --seed 3",
        "fedpals data show synthetic --delta 0.5 --json > federation.json",
        "fedpals data show mine.npz --labels-per-client 2",
    ),
)(data.show)
app.add_typer(_data, name="data")

_flower = typer.Typer(rich_markup_mode="rich", no_args_is_help=True, help="Flower apps and deployments.")
_flower.command(
    cls=Command,
    epilog=examples(
        "fedpals flower up examples/flower -c 'clients=3 rounds=2'",
        "fedpals flower up examples/flower --nodes 4 --tls -c 'clients=5 method=\"scaffold\"'",
    ),
)(flower.up)
_flower.command(
    cls=Command,
    epilog=examples("fedpals flower new hospitals", "fedpals flower new apps/hospitals --publisher my-account"),
)(flower.new)
_flower.command(
    cls=Command,
    epilog=examples(
        "fedpals flower check superlink.example.org:8443",
        "fedpals flower check 10.0.0.5:8443 --root-certificates ca.crt",
    ),
)(flower.check)
app.add_typer(_flower, name="flower")


def _print_error(sentence: str) -> None:
    new_console(stderr=True).print(f"[bold red]Error:[/] {escape(sentence)}", soft_wrap=True)


def main() -> None:
    """Run the command line; errors that a user can fix end with code 2 and one sentence."""
    print_anything()
    try:
        app()
    except FedpalsError as error:
        _print_error(str(error))
        raise SystemExit(2) from None
    except BrokenPipeError:  # as of `fedpals … | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        if error.filename is None:
            raise
        _print_error(f"{error.filename}: {error.strerror}; give another path")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
