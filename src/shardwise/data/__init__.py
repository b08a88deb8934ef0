"""Rows of any known format become token sequences, and sequences become the same global batches on any number of ranks."""
