"""Forecasts beside what other people measured and published: `make accuracy` writes docs/accuracy.md."""
