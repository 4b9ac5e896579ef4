"""The paper's experiments: definitions in TOML, the runs they stand for, and small results of everything."""
