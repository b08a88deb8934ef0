"""Shardwise: know that a fine-tuning run fits before you rent the GPUs, then train it the same way on any of them."""

__version__ = "0.1.0"
