"""Forecast against measurement: reads a run directory, writes report.json and one self-contained page."""
