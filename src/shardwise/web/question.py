"""The page's question: its fields, as in the address, and the job and the command they mean."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, get_args

from shardwise.api import Override
from shardwise.api.plans.for_target import targets_to_plan_for
from shardwise.api.plans.planning import GENERATES
from shardwise.errors import InputError
from shardwise.spec.job.data import DataSpec
from shardwise.spec.job.keys import LoraSpec, TrainSpec
from shardwise.spec.job.yaml import parse_yaml
from shardwise.spec.layout.execution import Checkpointing, Offload, Precision
from shardwise.spec.layout.optimizers import OptimizerName
from shardwise.spec.plan.found import Solved

#: A field's text in the address; no job has a longer one.
MOST_LETTERS = 300
#: Stands for a field that is no key of a job: what `shardwise plan` is to solve for.
SOLVE, FOR = "--solve", "--for"
#: Likewise what is asked for, and the link that hardware of several machines has.
TASK, NETWORK = "--task", "network"
GENERATE = "generate"
#: Read as numbers, as YAML does. Longer numbers stay text, which the reader of jobs refuses.
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?")
#: How many GPUs of a hardware's text: `2 x 8x `.
_COUNT = re.compile(r"(\d+\s*x\s*)?\d+\s*x\s+", re.IGNORECASE)


@dataclass(frozen=True)
class Field:
    """One field of the page: `key` of a job, and the flag of `shardwise plan` that sets it, if it
    has one. `usual`: what the page opens with; `number`: the ends of a slider; `left_out`: what a
    job has that does not say it."""

    name: str
    label: str
    key: str
    usual: str
    flag: str | None = None
    number: tuple[int, int] | None = None
    left_out: str = ""


#: In the order of the page.
FIELDS = (
    Field("task", "Task", TASK, "train"),
    Field("model", "Model", "model", "llama-3.1-8b", flag="--model"),
    Field("method", "Method", "method", "lora", flag="--method"),
    Field("hardware", "Hardware", "hardware", "4x RTX-6000-Ada", flag="--hardware"),
    Field("network", "Between machines, Gb/s", NETWORK, "", number=(10, 3200)),
    Field(
        "length",
        "Tokens per sequence",
        "data.max_length",
        "2048",
        flag="--max-length",
        number=(256, 131072),
        left_out=str(DataSpec().max_length),
    ),
    Field(
        "batch",
        "Sequences per step",
        "train.global_batch_size",
        "64",
        flag="--global-batch-size",
        number=(1, 1024),
        left_out=str(TrainSpec().global_batch_size),
    ),
    Field("rank", "LoRA rank", "lora.r", "16", number=(1, 256), left_out=str(LoraSpec().r)),
    Field("rows", "Rows of data", "data.num_rows", "10000", number=(100, 10_000_000)),
    Field("goal", "Goal", "goal", "fastest"),
    Field("layout", "Layout", "layout", "auto"),
    Field("precision", "Precision", "train.precision", ""),
    Field("optimizer", "Optimizer", "train.optimizer", ""),
    Field("recompute", "Recompute", "train.gradient_checkpointing", ""),
    Field("offload", "Offload", "train.offload", ""),
    Field("packing", "Packing", "data.packing", ""),
    Field("micro", "Micro-batch", "train.micro_batch_size", "", number=(1, 64), left_out="auto"),
    Field("solve", "Find what fits", SOLVE, ""),
    Field("for", "Trainer", FOR, ""),
)
#: Fields that are seldom changed, which the page folds, and what there is to choose.
FOLDED: dict[str, tuple[str, ...]] = {
    "precision": get_args(Precision),
    "optimizer": get_args(OptimizerName),
    "recompute": get_args(Checkpointing),
    "offload": get_args(Offload),
    "packing": ("true", "auto"),
    "for": targets_to_plan_for(),
}
NAMES = tuple(field.name for field in FIELDS)
#: Keys of recipes that change a plan, and have no field.
_NO_FIELD = {"objective", "lora.target_modules"}
#: Keys that only training has.
_NOT_GENERATED = {field.key for field in FIELDS} - {*GENERATES}


@dataclass(frozen=True, kw_only=True)
class WebQuestion:
    """What is asked: the text of every field, whether the hub may be asked for the model's
    configuration, and whether the plan's changes are planned too, which takes as long again."""

    texts: dict[str, str]
    hub: bool = False
    what_if: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """From the address, or the usual one. Raises InputError: a text is too long."""
        asked = bool({*NAMES, "hub"} & query.keys())
        texts: dict[str, str] = {}
        for field in FIELDS:
            texts[field.name] = text = query.get(field.name, "" if asked else field.usual).strip()
            if len(text) > MOST_LETTERS:
                raise InputError.at(field.name, f"{field.key} has {len(text)} letters; expected {MOST_LETTERS} at most")
        return cls(texts=texts, hub=query.get("hub") == "1", what_if=query.get("what_if") == "1")

    def __getitem__(self, name: str) -> str:
        return self.texts[name]

    def values(self, model: str) -> Iterator[tuple[Field, str | int | float]]:
        """The fields that say something, with the model as it is planned. Hardware that is left
        open is `any`; adapters have a rank, and full fine-tuning has none."""
        hardware = self["hardware"] or "any"
        hardware += f" @ {self['network']} Gb/s" if self["network"] else ""
        unread = {SOLVE, FOR, TASK, NETWORK, *(_NOT_GENERATED if self.generates else ())}
        for field in FIELDS:
            text = {**self.texts, "model": model, "hardware": hardware}[field.name]
            if not text or field.key in unread or (field.name == "rank" and self["method"] in ("full", "")):
                continue
            is_number = field.number is not None and _NUMBER.fullmatch(text)
            if field.name == "packing" and text in ("true", "false"):
                yield field, text == "true"
            else:
                yield field, (float(text) if "." in text else int(text)) if is_number else text

    def overrides(self, model: str) -> list[Override]:
        """What `api.plan` is called with; errors name the field."""
        values = ((field, json.dumps(value)) for field, value in self.values(model))
        return [Override(text=f"{field.key}={value}", where=field.name) for field, value in values]

    @property
    def generates(self) -> bool:
        """Whether text is to be generated, and nothing trained."""
        return self["task"] == GENERATE

    @classmethod
    def of_recipe(cls, text: str) -> dict[str, str] | None:
        """What a recipe asks; None where it states what the page has no field for."""
        job: dict[str, Any] = parse_yaml(text, file="job.yaml").value
        inner = ((part, key) for part in ("data", "lora", "train") for key in job.get(part, {}))
        stated = job | {f"{part}.{key}": job[part][key] for part, key in inner}
        if _NO_FIELD & stated.keys():
            return None
        texts = {field.name: str(stated[field.key]).replace("True", "true") for field in FIELDS if field.key in stated}
        return {"rows": "10000", **texts}

    @property
    def is_of_one_hardware(self) -> bool:
        """Whether it names one hardware, and solves for nothing."""
        hardware = self["hardware"].lower()
        return not self.solve and hardware not in ("", "any") and "," not in hardware

    @property
    def folded(self) -> bool:
        """Whether none of the fields that the page folds says anything."""
        return not any(self.texts[name] for name in (*FOLDED, "micro", "network", "solve"))

    def on(self, gpu: str) -> dict[str, str]:
        """The question for as many GPUs of another name."""
        count = _COUNT.match(self["hardware"])
        return self.query(hardware=f"{count[0] if count else '1x '}{gpu}", solve="")

    @property
    def solve(self) -> str | None:
        """The key to solve for."""
        return None if self.generates else self.texts["solve"] or None

    def keys(self, model: str, *, solved: Solved | None = None) -> dict[str, Any]:
        """The job as its file has it, with the value that was found."""
        values: dict[str, str | int | float] = {field.key: value for field, value in self.values(model)}
        if solved is not None and solved.value is not None:
            values |= {"hardware": solved.written} if solved.key == "gpus" else {solved.key: solved.value}
        job: dict[str, Any] = {}
        for name, value in values.items():
            section, _, key = name.rpartition(".")
            (job.setdefault(section, {}) if section else job)[key] = value
        return job

    def command(self, model: str) -> str:
        """The command that plans the same."""
        words = ["shardwise", "plan"]
        for field, value in self.values(model):
            written = json.dumps(value) if isinstance(value, bool) else str(value)
            words += [field.flag, written] if field.flag else ["--set", f"{field.key}={written}"]
        words += [SOLVE, self.solve] if self.solve else []
        words += [TASK, GENERATE] if self.generates else [FOR, self["for"]] if self["for"] else []
        return shlex.join(words)

    def query(self, **changed: str) -> dict[str, str]:
        """The question as an address has it, with other values for some fields."""
        texts = {**self.texts, **({"hub": "1"} if self.hub else {}), **changed}
        return {name: text for name, text in texts.items() if text}
