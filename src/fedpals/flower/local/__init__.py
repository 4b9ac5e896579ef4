"""A complete Flower deployment on this machine, for trials and for tests."""
