"""A whole Flower deployment on this machine, for trying things out and for tests."""
