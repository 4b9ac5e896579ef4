"""The measures by name: each prints its figures as they come, and adds them and their targets to the report."""

from collections.abc import Callable, Mapping

from simulation_rounds.measures.auto import measure_auto
from simulation_rounds.measures.command import measure_command
from simulation_rounds.measures.ess import measure_ess
from simulation_rounds.measures.rounds import measure_rounds
from simulation_rounds.measures.scale import measure_scale
from simulation_rounds.measures.workers import measure_workers
from simulation_rounds.report import Report
from simulation_rounds.sizes import Size

MEASURES: Mapping[str, Callable[[Size, Report], None]] = {
    "rounds": measure_rounds,
    "command": measure_command,
    "workers": measure_workers,
    "scale": measure_scale,
    "ess": measure_ess,
    "auto": measure_auto,
}
