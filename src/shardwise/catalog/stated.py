"""What a configuration states whatever its family: what is never read, and in which type weights are stored."""

from __future__ import annotations

from typing import Any

from shardwise.errors import ModelError, Problem, quoted

#: Keys by which a configuration asks for Python code from its own repository to be run, whatever its model_type.
_CODE_KEYS = ("custom_pipelines", "trust_remote_code")
_STORAGE_TYPES = ("float32", "bfloat16", "float16", "float64")


def refuse_foreign(data: dict[str, Any], *, file: str) -> None:
    """Refuses a configuration that asks for code, or for what is no plain decoder.

    Raises:
        ModelError: by which key.
    """
    message = None
    code = next((key for key in _CODE_KEYS if data.get(key)), None)
    if code is not None:
        message = (
            f"{code} names Python code of the model's own, which is never run; use a copy that "
            "transformers supports without it"
        )
    elif data.get("quantization_config"):
        message = "quantization_config says the weights are quantised already; name the unquantised model"
    elif data.get("add_cross_attention") or data.get("is_encoder_decoder"):
        message = "it is not a decoder-only language model; cross attention is not known"
    if message is not None:
        raise ModelError(Problem(where=file, message=message))


def storage_type(data: dict[str, Any], *, file: str) -> str:
    """The type that a configuration says weights are stored in.

    Raises:
        ModelError: it is none that is read.
    """
    found = data.get("dtype") or data.get("torch_dtype") or "float32"
    if found not in _STORAGE_TYPES:
        message = f"dtype is {quoted(found)}; expected one of {', '.join(_STORAGE_TYPES)}"
        raise ModelError(Problem(where=file, message=message))
    return found
