"""Starts of Python that find torch and transformers imported: for tests that start the program's
own processes."""
