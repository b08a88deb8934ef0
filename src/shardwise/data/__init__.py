"""Rows of any known format become token sequences, and these global batches."""
