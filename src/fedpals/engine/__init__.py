"""What every engine shares: the client's step, the server's round, evaluation, the last layer, checkpoints."""

KERNEL_VERSION = 4
"""Version of the arithmetic of a client's step; results of different versions differ in rounding, equal seeds or not.

1: torch's layers. 2: the CNN's convolutions compiled. 3: its whole step compiled, logistic regression in closed form.
4: with 16 lanes the gradients of the CNN's convolutions are added up in another order.
"""
