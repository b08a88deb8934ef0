"""Checkpoints and `final/`: writing, checking and reading the weights of a parallelized model"""
