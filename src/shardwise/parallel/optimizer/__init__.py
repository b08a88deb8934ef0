"""What the optimizer steps in place of parameters: ZeRO-1 shards, and copies on the host"""
