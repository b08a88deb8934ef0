"""`shardwise.parallelize`: any layout for people with a training loop of their own."""
