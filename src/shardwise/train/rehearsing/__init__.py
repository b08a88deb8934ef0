"""Rehearsal: the training code on tensors without numbers, in a world of ranks that are absent."""
