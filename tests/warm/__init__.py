"""Starts of Python that find torch and transformers imported: for the program's own processes."""
