"""What Python users call: a federation in, `train`, a `Study` to look at, a model that predicts."""
