"""What every engine shares: the client's step, the server's round, evaluation, the last layer, checkpoints."""
