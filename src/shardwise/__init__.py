"""Shardwise: know that a fine-tuning run fits before you rent the GPUs, then train it the same way
on any of them."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`shardwise.parallelize` and `shardwise.Trainer`, which need torch, when asked for."""
    if name == "parallelize":
        from shardwise.train.own_loop.parallelized import parallelize

        return parallelize
    if name == "Trainer":
        from shardwise.train.own_loop.hugging_face import Trainer

        return Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
