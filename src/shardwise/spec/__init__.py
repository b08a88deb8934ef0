"""Nouns: what both wings talk about. No tensors, no arithmetic, no I/O beyond reading and writing them."""
