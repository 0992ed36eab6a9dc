"""Handwritten digits with `wattwise run`: job files and their training scripts."""
