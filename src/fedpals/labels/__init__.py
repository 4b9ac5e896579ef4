"""Labels: the clients' counts, the target's marginal, their CSV files, and private counts."""

from fedpals.labels.counts import Indices, LabelCounts, Matrix, Vector, row_blocks
from fedpals.labels.target import as_target, match, with_names

__all__ = ["Indices", "LabelCounts", "Matrix", "Vector", "as_target", "match", "row_blocks", "with_names"]
