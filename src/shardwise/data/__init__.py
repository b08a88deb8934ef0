"""Rows of any known format become token sequences, and these the same global batches on any number of ranks."""
