"""Dataclasses that planner and trainer share. No tensors, no arithmetic, no I/O but their own."""
