"""Target-aware federated learning under label shift.

>>> import fedpals
>>> fedpals.solve([[90, 10], [30, 70]], [0.5, 0.5], ess=0.9).alpha.round(3).tolist()
[0.333, 0.667]
"""

from importlib.metadata import version

from fedpals.errors import CertificateError, FedpalsError, InputError
from fedpals.labels import LabelCounts
from fedpals.weights import Certificate, Projection, Weights, coverage, ess_grid, solve

__version__ = version("fedpals")

__all__ = [
    "Certificate",
    "CertificateError",
    "FedpalsError",
    "InputError",
    "LabelCounts",
    "Projection",
    "Weights",
    "__version__",
    "coverage",
    "ess_grid",
    "solve",
]
