"""Dataclasses that planner and trainer share. No tensors, no arithmetic, no I/O beyond reading and writing them."""
