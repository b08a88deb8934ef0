"""How a model is spread: meshes, sharding, replication, recompute, and their order."""
