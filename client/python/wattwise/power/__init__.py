"""GPU power limits: finds the cheapest one of a batch size while training, and uses it from then on."""
