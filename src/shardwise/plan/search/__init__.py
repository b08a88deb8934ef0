"""Search: the executions that a job leaves open, what fits, and the best of it for a goal."""
