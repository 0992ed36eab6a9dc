"""A model of a job as the contract has it, and random calls that compare a server with it; they share no code."""
