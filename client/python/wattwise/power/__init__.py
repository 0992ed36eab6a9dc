"""GPU power limits: which one trains a batch size most cheaply, found out once and used ever after."""
