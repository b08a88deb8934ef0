"""Small configurations of models, by their sizes."""

_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


def config(family: str, *sizes: int, vocab: int, **others: object) -> dict[str, object]:
    """Width, MLP width, layers, heads, heads of keys and values; and other keys of config.json."""
    return {"model_type": family, **dict(zip(_SIZES, sizes, strict=True)), "vocab_size": vocab, **others}
