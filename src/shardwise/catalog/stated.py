"""What a configuration states whatever its family: what is refused, types, dropout, positions."""

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, cast

from shardwise.catalog.families.family import Family
from shardwise.errors import ModelError, Problem, quoted
from shardwise.spec.model.shape import Published

#: Keys by which a configuration asks for Python code from its own repository to be run, whatever
#: its model_type.
_CODE_KEYS = ("custom_pipelines", "trust_remote_code")
#: Keys by which transformers' attention is not causal, and whether a configuration that states one
#: says so. The first is asked of every configuration, a null being a no. Gemma's is true, or speaks
#: of images alone. For what the last asks for, Falcon's code adds a mask of yes and no to scores.
_NOT_CAUSAL: dict[str, Callable[[dict[str, Any]], bool]] = {
    "is_causal": lambda data: not data["is_causal"],
    "use_bidirectional_attention": lambda data: data["use_bidirectional_attention"] not in (None, False, "vision"),
    "output_attentions": lambda data: data.get("model_type") == "falcon" and bool(data["output_attentions"]),
}
_STORAGE_TYPES = ("float32", "bfloat16", "float16", "float64")

#: Of a `return_dict` that is not true.
UNNAMED = "return_dict is {}, and its code reads what its parts give by names; leave it out"


def refuse_foreign(data: dict[str, Any], *, file: str) -> None:
    """Raises ModelError: a configuration asks for code, or is of no plain causal decoder."""
    own = "names Python code of the model's own, which is never run; use a copy that transformers supports without it"
    message = None
    if code := next((key for key in _CODE_KEYS if data.get(key)), None):
        message = f"{code} {own}"
    elif data.get("quantization_config") and published_as(data) is None:
        by = stated_quantisation(data).get("quant_method")
        others = "mxfp4 and fp8 are read, and no others: name the unquantised model"
        message = f"quantization_config says the weights are quantised already{by and f', by {by}'}; {others}"
    elif data.get("add_cross_attention") or data.get("is_encoder_decoder"):
        message = "it is not a decoder-only language model; cross attention is not known"
    else:
        ahead = "a token sees those after it, and a language model is trained to foretell them"
        for key in (key for key, says in _NOT_CAUSAL.items() if key in data and says(data)):
            message = f"{key} is {quoted(data[key])}, by which {ahead}; leave the key out"
    if message is not None:
        raise ModelError.at(file, message)


def published_as(data: Mapping[str, Any]) -> Published | None:
    """In which fewer bits, of those that are read, a configuration says weights are published."""
    found: Any = stated_quantisation(data).get("quant_method")
    return found if found in ("mxfp4", "fp8") else None


def stated_quantisation(data: Mapping[str, Any]) -> dict[str, Any]:
    """`quantization_config` of a configuration, or of the language model's inside it."""
    inside: Any = data.get("text_config")
    found: Any = data.get("quantization_config") or (isinstance(inside, dict) and stated_quantisation(inside))  # pyright: ignore
    return found if isinstance(found, dict) else {}  # pyright: ignore


def storage_type(data: dict[str, Any], *, file: str) -> str:
    """The type that weights are stored in. Raises ModelError: it is none that is read."""
    unstated = "float32" if published_as(data) is None else "bfloat16"
    found = data.get("dtype") or data.get("torch_dtype") or unstated
    if found not in _STORAGE_TYPES:
        raise ModelError.at(file, f"dtype is {quoted(found)}; expected one of {', '.join(_STORAGE_TYPES)}")
    return found


#: Heads of other tasks, which no language model has, with rates of their own.
_OTHER_HEADS = ("summary_", "classifier_")

#: How families name the dropout of what attention and the MLP add to the stream.
_OF_STREAM = ("resid_pdrop", "resid_dropout", "residual_dropout", "hidden_dropout", "dropout")


def dropped(stated: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Whether a model drops out at all, by keys such as `attention_dropout` or `resid_pdrop`, of
    what attention and the MLP add to the stream, and of attention's scores."""
    names = [name for name, rate in rates(stated) if rate > 0]
    return bool(names), not {*names}.isdisjoint(_OF_STREAM), any(name.startswith("att") for name in names)


def rates(stated: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The chances of every dropout, by key."""
    for key, value in stated.items():
        name = str(key)  # transformers numbers its labels
        if isinstance(value, dict):
            yield from rates(cast(dict[str, Any], value))
        elif "drop" in name and not name.startswith(_OTHER_HEADS) and isinstance(value, int | float):
            yield name, value


def counts_routes(stated: Mapping[str, Any]) -> bool:
    """Whether a model's loss has a part for even use of its experts."""
    return bool(stated.get("output_router_logits")) and stated.get("router_aux_loss_coef", 1.0) != 0


#: What families call their number of positions.
_OTHERS = ("n_positions", "max_seq_len", "seq_length", "max_sequence_length", "context_length")
POSITIONS = ("max_position_embeddings", *_OTHERS)
_ORIGINAL, _SHARE = "original_max_position_embeddings", "partial_rotary_factor"


def steady_positions(stated: Mapping[str, Any], *, positions: int) -> int | None:
    """The length up to which rotary frequencies do not depend on the longest row; None for any."""
    for rotation in (one for one in _rotations(stated) if _kind(one) in ("longrope", "dynamic")):
        if _kind(rotation) == "dynamic":
            return positions
        original = rotation.get(_ORIGINAL) or stated.get(_ORIGINAL)
        return original if type(original) is int else positions
    return None


def stretched_positions(stated: Mapping[str, Any]) -> int:
    """How many positions rotary scaling reaches: its factor times those that the model was first
    trained on; 0 where none is stated. Configurations of YaRN are published with the first number
    (Qwen) or with the last (gpt-oss)."""
    plain = next(_rotations(stated))
    factor, original = plain.get("factor"), plain.get(_ORIGINAL)
    if isinstance(factor, int | float) and isinstance(original, int) and _kind(plain) in ("yarn", "linear", "dynamic"):
        with suppress(OverflowError):
            return int(factor * original)
    return 0


_LISTS_OF_FACTORS = ("short_factor", "long_factor")
#: What transformers' code reads of a way to rotate; of YaRN it takes logarithms.
_READ = dict.fromkeys(("linear", "dynamic"), ("factor",)) | {
    "yarn": ("factor", _ORIGINAL, "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"),
    "longrope": (_ORIGINAL, "attention_factor", *_LISTS_OF_FACTORS),
    "llama3": ("factor", _ORIGINAL, "low_freq_factor", "high_freq_factor"),
}
#: And in the place of a null or 0.
_OWN = {"beta_fast": 32, **dict.fromkeys(("beta_slow", "attention_factor", "mscale", "mscale_all_dim"), 1)}


def misfit_of_rotation(stated: Mapping[str, Any], family: Family, *, width: int) -> str:
    """Which rotation is none that a family's code knows, or lacks what it reads. `width`: of what
    is rotated of a head, or a part of it."""
    kinds, several = family.rotations, any(isinstance(one, dict) for one in (family.rotation or {}).values())
    stated = {"rope_parameters": family.rotation, **stated}
    for key in ("rope_parameters", "rope_scaling"):
        said: Any = stated.get(key) or {}
        if not isinstance(said, dict):
            return f"{key} is {quoted(stated[key])}; expected an object of keys, or null"
        if not several and (inside := [kind for kind, one in said.items() if isinstance(one, dict)]):  # pyright: ignore
            return f"{key} has {quoted(cast(Any, inside[0]))}, and its code has one for all layers: write that"
    for one in _rotations(stated):
        kind, numbers = _kind(one), {"rope_theta": stated.get("rope_theta", 1e4), _ORIGINAL: 2, **one}
        if kind not in (kinds or ("default",)):
            known = f"its code knows {', '.join(kinds)} alone" if kinds else "its code reads none; leave it out"
            return f"rope_type is {quoted(kind)}, and {known}"
        turned: Any = one.get(_SHARE, stated.get(_SHARE))
        turned = family.rotated_share if turned is None and _SHARE not in one else turned
        unread = not kinds or (family.rotates and kind == "default")
        least = f"1, as its code turns whole heads by {kind}" if family.rotates and kind != "proportional" else ""
        if not unread and (type(turned) not in (int, float) or not bool(least) <= turned <= 1):
            return f"{_SHARE} is {quoted(turned)}; expected {least or 'a number from 0 to 1'}"
        for key in ("rope_theta", *_READ.get(str(kind), ())) if kinds else ():
            found, expected = numbers.get(key), "write the one that it was trained with"
            found = found or _OWN.get(key, found)
            fits = isinstance(found, int | float) and (kind != "yarn" or found > (key == "rope_theta"))
            if key in _LISTS_OF_FACTORS:
                pairs = (int(width * turned) + 1) // 2
                fits = type(found) is list and len(cast(list[Any], found)) == pairs
                expected = f"expected a list of {pairs} numbers"
            if not fits:
                return f"{key} is {quoted(numbers.get(key))} beside rope_type {kind}; {expected}"
    return ""


def misfit_of_numbers(stated: Mapping[str, Any]) -> str:
    """Which rate, or spread of new weights, no code of transformers takes; or no positions."""
    for key in (*POSITIONS, "query_pre_attn_scalar"):
        if isinstance(found := stated.get(key), int | float) and found <= 0:
            return f"{key} is {found}; expected a number above 0"
    named = {k: stated[k] for k in ("attention_dropout", "initializer_range", "time_step_scale") if k in stated}
    for key, found in {**dict(rates(stated)), **named}.items():
        if not isinstance(found, int | float) or not 0 <= found <= (1 if "drop" in key else inf):
            return f"{key} is {quoted(found)}; expected a number from 0 {'to 1' if 'drop' in key else 'on'}"
    return ""


def _rotations(stated: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """How positions rotate: in all layers, or one entry for each kind of layers."""
    said: list[Any] = [stated.get("rope_parameters"), stated.get("rope_scaling")]
    rope, scaling = (cast(dict[str, Any], one) if isinstance(one, dict) else {} for one in said)
    yield scaling or rope
    yield from (cast(dict[str, Any], one) for one in (*rope.values(), *scaling.values()) if isinstance(one, dict))


def _kind(rotation: Mapping[str, Any]) -> Any:
    return rotation.get("rope_type", rotation.get("type", "default"))


MAX_LAYERS = 1_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
#: Behind the name of a file, of the keys of the language model in it.
PART = ", text_config"
#: Where transformers lists its models, by version.
_LISTS = ("auto_mappings.py", "configuration_auto.py")


class UnlistedFamilyError(ModelError):
    """A family that transformers has and the catalogue has not: its shape is read from a build."""

    def __init__(self, data: dict[str, Any], *, file: str) -> None:
        message = f"model_type {quoted(data.get('model_type'))} has no row in the catalogue, and was not built"
        super().__init__(Problem(where=file, message=message))
        self.file = file.removesuffix(PART)


def unlisted(data: dict[str, Any], *, file: str, known: list[str]) -> ModelError:
    """What to raise for a family without a row: that it must be built, or that it is not known."""
    kind = data.get("model_type")
    if isinstance(kind, str) and (folder := installed()) is not None and _has(folder, kind):
        refuse_foreign(data, file=file)
        layers = data.get("num_hidden_layers")
        if isinstance(layers, int) and not 1 <= layers <= MAX_LAYERS:
            return ModelError.at(file, f"num_hidden_layers is {layers}; expected a whole number from 1 to {MAX_LAYERS}")
        return UnlistedFamilyError(data, file=file)
    code = "; the Python code that auto_map names is never run" if data.get("auto_map") else ""
    build = "; with `pip install shardwise[train]`, other families that transformers has are counted by building them"
    build = "" if installed() else build
    return ModelError.at(file, f"model_type {quoted(kind)} is not known{code}{build}; known are {', '.join(known)}")


def installed() -> Path | None:
    """The folder of the installed transformers, by which families without a row are counted; None
    where transformers or torch is missing."""
    try:
        found = [importlib.util.find_spec(name) for name in ("transformers", "torch")]
    except (ModuleNotFoundError, ValueError):
        return None
    folders = [spec.submodule_search_locations if spec else None for spec in found]
    return Path(folders[0][0]) if folders[0] and folders[1] else None


def _has(transformers: Path, kind: str) -> bool:
    if _NAME.fullmatch(kind) is None:
        return False
    entry = re.compile(rf'"{re.escape(kind)}"\s*[:,]')
    lists = [transformers / "models" / "auto" / name for name in _LISTS]
    return any(entry.search(path.read_text(encoding="utf-8")) for path in lists if path.is_file())
