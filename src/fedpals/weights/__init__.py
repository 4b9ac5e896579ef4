"""Aggregation weights: section 3 of the paper and its appendix "Choice of λ", solved exactly.

    α^λ = argmin over the simplex  ‖T − Σ α_i S_i‖² + λ Σ α_i²/n_i

Needs only numpy, scipy and DAQP. Every answer has a certificate; an answer that fails it is never returned.
"""

from fedpals.weights.certificate import Certificate
from fedpals.weights.instance import Weights
from fedpals.weights.projection import Projection
from fedpals.weights.solver import coverage, ess_grid, solve

__all__ = ["Certificate", "Projection", "Weights", "coverage", "ess_grid", "solve"]
