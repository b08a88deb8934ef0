"""Memory: what each rank has alive at every instant of a step, and the peak of that."""
