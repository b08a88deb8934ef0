"""Nouns: what both wings talk about. No tensors, no arithmetic of the planner, no I/O beyond reading and writing them."""
