"""Privacy and far updates on Flower: the server's own noise, and no other."""

from __future__ import annotations

WRAPPED = (
    "another strategy wraps this one, such as one of Flower's DifferentialPrivacy classes: their noise z·C/M is too "
    "small for weights that are not 1/M, they do not clip clients that are trained after a refusal, and they do not "
    "continue from a checkpoint; leave out the wrapper, and give clip_update=1.0, noise_multiplier=1.0 to this strategy"
)
"""Why no other strategy may call this one."""
