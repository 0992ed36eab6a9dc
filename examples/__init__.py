"""Runnable examples: one script per trainer, and a demo in its own folder."""
