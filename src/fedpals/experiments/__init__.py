"""The paper's experiments: definitions in TOML, their runs, and compact results."""
