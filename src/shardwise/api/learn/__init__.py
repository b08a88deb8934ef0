"""What pages show: a toy's step, plans and runs."""
