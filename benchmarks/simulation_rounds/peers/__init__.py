"""What others would do: a plain loop, pfl-research, and Flower with Ray."""
