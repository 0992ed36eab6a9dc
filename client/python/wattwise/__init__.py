"""Wattwise: which batch size trains a recurring deep-learning job most cheaply."""
