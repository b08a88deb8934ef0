"""The cells of the grid: family x method x layout x batch x length x recompute x rows, drawn once for all."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwise.catalog.gpus import parse_hardware
from shardwise.errors import UnsupportedError
from shardwise.plan.answer import make_plan
from shardwise.plan.search.question import ask, work_on
from shardwise.plan.work.work import Work
from shardwise.spec.cluster import Cluster
from shardwise.spec.data_facts import Lengths
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.forecast import Candidate
from shardwise.spec.support.trained import execution_refusals

#: Cells that are measured; of the same families those in which FSDP reduces gradients once a step, and those of the
#: pipelines below; those of the held-out family; those of the one before it; those with compiled blocks; and those
#: that learn from preferences.
COUNT, COUNT_ONCE, COUNT_PIPELINES, COUNT_HELD_OUT, COUNT_LED, COUNT_COMPILED = 220, 26, 18, 28, 26, 48
COUNT_PREFERENCES = 40
#: Of the latter the first, which may have led to rules; the others were measured later.
LED_COMPILED = 40
_SEED = 0
#: Micro-batches of a step; in the pipelines below more, so that several are in flight.
_ACCUMULATION, _ACCUMULATION_IN_PIPELINES = 2, 4
#: Share of a peak that may go unseen.
EXACT = 0.001

#: Keys of config.json beside `COMMON`; all widths are multiples of 64, which QLoRA's blocks are.
COMMON: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied": {"model_type": "llama", "tie_word_embeddings": True},
    "mistral": {},
    "qwen3": {"head_dim": 32},
    "gemma": {"head_dim": 32, "tie_word_embeddings": True},
    "gpt_neox": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo2": {},
    "granite": {},
    "starcoder2": {},
}
#: Chosen before it was measured, and after the forecast's rules were made: no rule is made from it.
HELD_OUT: dict[str, dict[str, Any]] = {"exaone4": {"head_dim": 32}}
#: Held out until a rule was made from it. It has dropout of its own unless its configuration says otherwise.
LED_TO_A_RULE: dict[str, dict[str, Any]] = {
    "seed_oss": {"head_dim": 32, "attention_dropout": 0.0, "residual_dropout": 0.0}
}
#: Of sizes that are trained, for GPUs.
LARGE: dict[str, dict[str, Any]] = {
    "llama 0.9b": {
        "model_type": "llama",
        "vocab_size": 32768,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
    },
    "qwen3 0.6b": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
}

_CONFIGS = FAMILIES | HELD_OUT | LED_TO_A_RULE | LARGE

#: Name -> processes, and what the job says of the layout.
LAYOUTS: dict[str, tuple[int, Any]] = {
    "single": (1, "auto"),
    "ddp": (2, "ddp"),
    "zero1": (2, "zero1"),
    "zero2": (2, "zero2"),
    "fsdp": (2, "fsdp"),
    "fsdp 4": (4, "fsdp"),
    "hsdp": (4, {"dp_replicate": 2, "dp_shard": 2}),
    "tp": (2, "tp"),
    "mp": (2, "mp"),
    "1f1b": (2, {"pp": 2, "schedule": "1f1b"}),
    "gpipe": (2, {"pp": 2, "schedule": "gpipe"}),
    "cp": (2, {"cp": 2}),
    "fsdp x tp": (4, {"dp_shard": 2, "tp": 2}),
    "fsdp x 1f1b": (4, {"dp_shard": 2, "pp": 2, "schedule": "1f1b"}),
}
#: Those that are drawn apart from the others.
PIPELINES: dict[str, tuple[int, Any]] = {
    "interleaved": (2, {"pp": 2, "schedule": "interleaved"}),
    "zero_bubble": (2, {"pp": 2, "schedule": "zero_bubble"}),
}
_EVERY_LAYOUT = LAYOUTS | PIPELINES
#: Of one or two processes, and blocks are compiled under them.
LAYOUTS_COMPILED = ("single", "ddp", "zero1", "zero2", "fsdp", "mp", "1f1b", "gpipe")
#: Likewise, of preferences.
LAYOUTS_OF_PREFERENCES = (*LAYOUTS_COMPILED, "tp", "cp")
OBJECTIVES = ("dpo", "dpo", "orpo", "kto", "simpo")
METHODS = ("full", "lora", "qlora")
BATCHES = (1, 2, 4)
LENGTHS = (128, 256)
RECOMPUTE = ("none", "none", "selective", "full")
PRECISIONS = ("fp32", "mixed")
#: How rows fill `max_length`: each as long as that; packed to it; or shorter, so that batches are padded.
ROWS = ("whole", "packed", "padded")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run: what it trains, how, on how many processes."""

    family: str
    method: str
    layout: str
    batch: int
    length: int
    recompute: str
    precision: str
    rows: str
    compile: bool = False
    objective: str = "sft"

    @property
    def processes(self) -> int:
        """Of the layout."""
        return _EVERY_LAYOUT[self.layout][0]

    @property
    def accumulation(self) -> int:
        """Micro-batches of a step."""
        return _ACCUMULATION_IN_PIPELINES if self.layout in PIPELINES else _ACCUMULATION

    def hardware(self, gpu: str | None = None) -> Cluster:
        """So many CPU processes, or GPUs of a name. Raises HardwareError: the catalogue has no such GPU."""
        return parse_hardware(f"cpu:{self.processes}" if gpu is None else f"{self.processes}x {gpu}")

    @property
    def held_out(self) -> bool:
        """No rule of the forecast was made from it."""
        return self.family in HELD_OUT

    @property
    def apart(self) -> bool:
        """It has lines of its own, and is in no others."""
        return self.family in HELD_OUT | LED_TO_A_RULE

    @property
    def words(self) -> str:
        """For people."""
        method = self.method if self.objective == "sft" else f"{self.objective} {self.method}"
        what = f"{self.family}, {method}, {self.layout}, {self.batch} x {self.length} tokens, {self.precision}"
        return f"{what}, recompute {self.recompute}, {self.rows} rows{', compiled' if self.compile else ''}"

    @property
    def config(self) -> dict[str, Any]:
        """Its config.json."""
        return {**COMMON, "model_type": self.family, **_CONFIGS[self.family]}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One rank of one cell. `longest`, `mean`, `document`: tokens of the sequences it trained on, as a plan knows them;
    `weights`, `optimizer`, `peak`: bytes; `unseen`: of the peak, what may have been freed before it; `rehearsed`: the
    peak of the same rank on fake tensors, None where that is refused; `reduce_once`: 1 where the plan it ran had chosen
    so, which a later planner may not; `step`: the one of the peak, counted from 0, where it is known."""

    longest: int
    mean: float
    document: float | None
    rank: int
    weights: int
    optimizer: int
    peak: int
    unseen: int
    rehearsed: int | None = None
    reduce_once: int = 0
    step: int | None = None

    @property
    def seen_whole(self) -> bool:
        """Next to nothing of the peak is uncertain."""
        return self.unseen <= EXACT * self.peak

    @property
    def lengths(self) -> Lengths:
        """Of the sequences it trained on."""
        return Lengths(longest=self.longest, mean=self.mean, document=self.document)


def job_of(cell: Cell, *, model: str, data: str) -> Job:
    """The job of a cell on a model's folder and a file of rows. Raises ShardwiseError: no such job."""
    layout = _EVERY_LAYOUT[cell.layout][1]
    others = 1 if isinstance(layout, str) else layout.get("pp", 1) * layout.get("tp", 1) * layout.get("cp", 1)
    replicas = 1 if layout in ("auto", "tp", "mp") else cell.processes // others
    return job_from_data(
        {
            "model": model,
            "method": cell.method,
            "objective": cell.objective,
            "layout": layout,
            "data": {
                "path": data,
                "max_length": cell.length,
                "packing": cell.rows == "packed",
                "over_long": "truncate",
            },
            "train": {
                "global_batch_size": cell.batch * replicas * cell.accumulation,
                "micro_batch_size": cell.batch,
                "max_steps": 6,
                "precision": cell.precision,
                "gradient_checkpointing": cell.recompute,
                "save_steps": 0,
                "compile": cell.compile,
                "optimizer": "adamw",
                # `auto` would join rows that are not packed, and compute no padding.
                "attn_implementation": "auto" if cell.rows == "packed" else "sdpa",
            },
        }
    )


def planned(cell: Cell, job: Job, *, shape: ModelShape, lengths: Lengths, gpu: str | None = None) -> Candidate:
    """As `shardwise train` plans it. Raises ShardwiseError: the planner or the trainer refuses it."""
    best = make_plan(job, model=shape, cluster=cell.hardware(gpu), lengths=lengths).best
    if best is None:
        raise UnsupportedError("no execution fits")
    if reasons := execution_refusals(job, best.execution, model=shape):
        raise UnsupportedError("; ".join(reasons))
    return best


def work_of_run(cell: Cell, seen: Measured, job: Job, *, shape: ModelShape, gpu: str | None = None) -> Work:
    """Of the plan that was run when the cell was measured. Raises ShardwiseError: as `planned`."""
    chosen = planned(cell, job, shape=shape, lengths=seen.lengths, gpu=gpu)
    execution = replace(chosen.execution, reduce_once=bool(seen.reduce_once))
    cluster = cell.hardware(gpu)
    return work_on(ask(job, model=shape, cluster=cluster, lengths=seen.lengths), cluster, execution)


def drawn(families: Iterable[str] = tuple(FAMILIES), layouts: Iterable[str] = tuple(LAYOUTS)) -> Iterator[Cell]:
    """Cells of families without end; what the trainer refuses is for the caller to leave out."""
    sides = {
        "family": tuple(families),
        "method": METHODS,
        "layout": tuple(layouts),
        "batch": BATCHES,
        "length": LENGTHS,
        "recompute": RECOMPUTE,
        "precision": PRECISIONS,
        "rows": ("whole", *ROWS),
    }
    return _dealt(sides)


def drawn_pipelines() -> Iterator[Cell]:
    """Those of the pipelines that are drawn apart; rows of their micro-batches have one length."""
    return (cell for cell in drawn(layouts=PIPELINES) if cell.rows != "padded")


def drawn_compiled() -> Iterator[Cell]:
    """The same with compiled blocks, of what is trained so."""
    sides = {
        "family": tuple(family for family in FAMILIES if "num_local_experts" not in FAMILIES[family]),
        "method": ("full", "lora"),
        "layout": LAYOUTS_COMPILED,
        "batch": BATCHES,
        "length": LENGTHS,
        "recompute": RECOMPUTE,
        "precision": PRECISIONS,
        "rows": ("whole", "packed"),
        "compile": (True,),
    }
    return _dealt(sides)


def drawn_preferences() -> Iterator[Cell]:
    """Cells that learn from pairs and labelled rows, each as long as `max_length`."""
    sides = {
        "family": tuple(FAMILIES),
        "method": METHODS,
        "layout": LAYOUTS_OF_PREFERENCES,
        "batch": BATCHES,
        "length": LENGTHS,
        "recompute": RECOMPUTE,
        "precision": PRECISIONS,
        "rows": ("whole",),
        "objective": OBJECTIVES,
    }
    return _dealt(sides)


def _dealt(sides: dict[str, Sequence[Any]]) -> Iterator[Cell]:
    """Values of each side come equally often, in an order of its own."""
    draw = random.Random(_SEED)  # noqa: S311
    decks: dict[str, list[Any]] = {name: [] for name in sides}
    while True:
        chosen: dict[str, Any] = {}
        for name, values in sides.items():
            if not decks[name]:
                decks[name] = draw.sample(values, len(values))
            chosen[name] = decks[name].pop()
        yield Cell(**chosen)
