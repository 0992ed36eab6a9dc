"""Runnable examples: one script per trainer, and a demo in a folder of its own."""
