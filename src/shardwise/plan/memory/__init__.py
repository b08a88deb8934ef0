"""Memory: what each rank of an execution has alive at every instant of a step, and the peak of that."""
