"""What a job's `model:` names, as a ModelShape: a folder, config.json, catalogue name or hub id;
with rotary positions that the job stretches (`rope_scaling`)."""

import difflib
import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from shardwise.catalog.config import parse_config, read_config_file, shape_from_data
from shardwise.catalog.hub import cached_config, download_config, is_hub_id
from shardwise.catalog.prices import read_table
from shardwise.catalog.stated import POSITIONS
from shardwise.errors import ModelError, UnsupportedError
from shardwise.spec.job.rope import RopeScaling
from shardwise.spec.model.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """One entry of models.toml. `config`: the keys of its config.json that the shape depends on.
    `num_parameters`: as its model card states it; None where not known. `nominal_billions`: from
    its name, where the exact count is not known. `frozen_parameters`: of what a model of more than
    text has beside its language model; None: not counted."""

    name: str
    hub_id: str
    config: dict[str, Any]
    num_parameters: int | None
    nominal_billions: float | None
    frozen_parameters: int | None
    source: str

    @property
    def shape(self) -> ModelShape:
        """What its configuration says of it, or was measured of its build."""
        if (built := measured(self.config)) is not None:
            return ModelShape.from_json(built["shape"])
        shape = shape_from_data(self.config, file=f"catalogue entry {self.name}")
        if shape.wrapper is None:
            return shape
        return replace(shape, wrapper=replace(shape.wrapper, frozen_parameters=self.frozen_parameters))


@cache
def known_models() -> dict[str, KnownModel]:
    """The catalogue, by name."""
    return {name: _entry(name, row) for name, row in read_table("models").items()}


def _entry(name: str, row: dict[str, Any]) -> KnownModel:
    # TOML has no null, and an absent key would mean the family's default.
    config = {**row["config"], **dict.fromkeys(row.get("null_keys", ()))}
    counts = {key: row.get(key) for key in ("num_parameters", "nominal_billions", "frozen_parameters")}
    source = f"https://huggingface.co/{row['id']}/blob/main/config.json"
    return KnownModel(name=name, hub_id=row["id"], config=config, source=source, **counts)


def find_model(
    name: str, *, offline: bool = False, revision: str | None = None, rope: RopeScaling | None = None
) -> ModelShape:
    """The shape of the model a job names.

    Looked for in this order: a folder with a config.json, a config.json itself, a catalogue name or
    the hub id of a catalogue entry, the local Hugging Face cache (of a `revision`, or the newest),
    and (unless `offline`) the hub. `rope`: how a job stretches its rotary positions. Raises
    ModelError: it is none of these, or its configuration is not one that can be planned;
    UnsupportedError: it has no positions to stretch."""
    known = _known_here(name)
    if known is not None:
        scaled = replace(known, config=scaled_config(known.config, rope))
        return scaled_shape(scaled.shape, rope, known.config)
    data, file = _stated(name, offline=offline, revision=revision)
    return scaled_shape(shape_from_data(scaled_config(data, rope), file=file), rope, data)


def config_of(
    name: str, *, offline: bool = False, revision: str | None = None, rope: RopeScaling | None = None
) -> dict[str, Any]:
    """The keys of config.json that `find_model` reads a shape from; raises as that does."""
    known = _known_here(name)
    data = _stated(name, offline=offline, revision=revision)[0] if known is None else known.config
    return scaled_config(data, rope)


def _known_here(name: str) -> KnownModel | None:
    """The catalogue's entry that a name means, where no file or folder is called so."""
    path = Path(name)
    return None if path.is_dir() or path.is_file() else _known(name)


def _stated(name: str, *, offline: bool, revision: str | None) -> tuple[dict[str, Any], str]:
    """What the config.json of a name holds, and where it stands."""
    path = Path(name)
    if path.is_dir():
        _refuse_adapter(path)
        return read_config_file(path / "config.json")
    if path.is_file():
        return read_config_file(path)
    if not is_hub_id(name):
        raise ModelError.at(name, f"is no folder, no config.json and no known model{_nearest(name)}")
    cached = cached_config(name, revision=revision)
    return _from_hub(name, offline=offline) if cached is None else read_config_file(cached)


def _refuse_adapter(folder: Path) -> None:
    """Raises ModelError where a folder holds an adapter and no weights of a model."""
    adapter = folder / "adapter_config.json"
    whole = [path for path in folder.glob("*.safetensors") if path.name != "adapter_model.safetensors"]
    if adapter.is_file() and not whole:
        base = read_config_file(adapter)[0].get("base_model_name_or_path")
        named = f", {base}" if isinstance(base, str) else ""
        said = f"holds an adapter, not a model; name its base model{named}, or the folder that `shardwise merge` writes"
        raise ModelError.at(str(folder), said)


def read_model(name: str, *, revision: str | None = None, rope: RopeScaling | None = None) -> ModelShape:
    """Like `find_model`, but never over the network: for workers."""
    return find_model(name, offline=True, revision=revision, rope=rope)


def _known(name: str) -> KnownModel | None:
    return next((one for one in known_models().values() if name.lower() in (one.name, one.hub_id.lower())), None)


def hub_id(name: str) -> str:
    """Where the weights of a catalogue name are; another name as it is."""
    known = _known(name)
    return name if known is None else known.hub_id


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), known_models(), n=3, cutoff=0.5)
    others = "name a folder, a hub id such as org/name, or one of those that `shardwise plan --list models` shows"
    return f"; nearest known: {', '.join(near)}" if near else f"; no known model has a name like it: {others}"


def _from_hub(name: str, *, offline: bool) -> tuple[dict[str, Any], str]:
    near = _nearest(name)
    if offline:
        raise ModelError.at(name, f"is not in the local Hugging Face cache, and the network is not to be used{near}")
    try:
        url, raw = download_config(name)
    except ModelError as error:
        raise ModelError([replace(one, message=one.message + near) for one in error.problems]) from None
    return parse_config(raw, file=url), url


MEASURED = Path(__file__).parent / "measured"


def measured(config: dict[str, Any]) -> dict[str, Any] | None:
    """The `shape` of a config.json, its `profiles` by what of a job they depend on, and the
    version of `transformers`; None: it was not measured."""
    file = next(MEASURED.glob(f"*-{key_of(config)}.json.gz"), None)
    return None if file is None else json.loads(gzip.decompress(file.read_bytes()))


def key_of(config: dict[str, Any]) -> str:
    """What ends the name of a configuration's file."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]


#: What of a model's own rotation stays where the job does not say it.
_KEPT = ("rope_theta", "partial_rotary_factor")
#: Families whose layers rotate in two ways, of which their config.json may say one.
_SEVERAL = ("gemma3", "gemma3_text", "gemma3n", "gemma3n_text")
#: Kinds that count from the positions of `rope_parameters`; others from those of the model.
_FROM_ORIGINAL = ("yarn", "llama3", "longrope")


def rotation(own: Mapping[str, Any], rope: RopeScaling, *, positions: int) -> dict[str, Any]:
    """`rope_parameters` of a model with a job's. `own`: those of its config.json; `positions`: that
    it states. Raises UnsupportedError: its layers rotate in several ways."""
    if several := [str(key) for key, one in own.items() if isinstance(one, dict)]:
        raise _several(", ".join(several))
    kept = {key: own[key] for key in _KEPT if own.get(key) is not None}
    original = {"original_max_position_embeddings": positions} if rope.rope_type in _FROM_ORIGINAL else {}
    return {**kept, **original, **rope.stated}


def scaled_config(data: dict[str, Any], rope: RopeScaling | None) -> dict[str, Any]:
    """The keys of a config.json with a job's `rope_scaling`, of a model of more than text in its
    language model. Raises UnsupportedError: as `rotation`."""
    if rope is None:
        return data
    if isinstance(inner := data.get("text_config"), dict):
        return {**data, "text_config": scaled_config(cast(dict[str, Any], inner), rope)}
    own: dict[str, Any] = data.get("rope_parameters") or data.get("rope_scaling") or {}
    made = rotation(own, rope, positions=_positions(data))
    others = {key: one for key, one in data.items() if key != "rope_scaling"}
    if "original_max_position_embeddings" in others and "original_max_position_embeddings" in made:
        others["original_max_position_embeddings"] = made["original_max_position_embeddings"]
    return {**others, "rope_parameters": made}


def scaled_shape(shape: ModelShape, rope: RopeScaling | None, data: Mapping[str, Any]) -> ModelShape:
    """A shape that was read of `scaled_config`, with the positions that are reached. `data`:
    config.json as it is. Raises UnsupportedError: its positions do not rotate."""
    if rope is None:
        return shape
    if shape.family in _SEVERAL:
        raise _several("full_attention, sliding_attention")
    if shape.position_parameters:
        raise UnsupportedError(f"rope_scaling: {shape.family} has learned positions, which none stretches; remove it")
    inner = data.get("text_config")
    stated = _positions(cast(dict[str, Any], inner) if isinstance(inner, dict) else data)
    return replace(shape, max_position_embeddings=max(stated, rope.reach(stated)))


def _several(names: str) -> UnsupportedError:
    return UnsupportedError(
        f"rope_scaling: layers of this model rotate in several ways ({names}), and the key says one for all; write "
        "rope_parameters into a copy of its config.json"
    )


def _positions(data: Mapping[str, Any]) -> int:
    found = next((data[name] for name in POSITIONS if isinstance(data.get(name), int)), None)
    if found is None:
        raise UnsupportedError(
            "rope_scaling: config.json of the model states no max_position_embeddings, which it stretches; add it there"
        )
    return found
