"""Forecasts of memory beside what our own trainer measures, over a grid of small runs on CPU processes."""
