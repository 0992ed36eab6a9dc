"""The demo: a job that trains on handwritten digits recurs, with batch sizes from a Wattwise server."""
