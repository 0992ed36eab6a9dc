"""Handwritten digits under `wattwise run`: a job file and the training scripts that it may start."""
