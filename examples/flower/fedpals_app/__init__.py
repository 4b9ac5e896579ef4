"""FedPALS and its baselines on Flower."""
