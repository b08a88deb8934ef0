"""Arithmetic: pure functions from nouns to forecasts. No I/O, no torch."""
