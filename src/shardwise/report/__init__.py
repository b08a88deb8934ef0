"""Forecast against measurement: from a run directory, report.json and one self-contained page."""
