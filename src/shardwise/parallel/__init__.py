"""How a model is spread: meshes, sharding, replication, recompute, and the order in which they are applied."""
