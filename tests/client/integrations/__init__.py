"""Tests of the trainers' callbacks, each with the real library: `make test-trainers`."""
