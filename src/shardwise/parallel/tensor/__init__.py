"""Tensor parallelism: slices of matrices, and the activations between them"""
