"""Executions at a GPU's scale, drawn at random: a question in a line, and its answer.

`python -m tests.unit.plan.drawn "REASON"` keeps today's answers where they moved, with the reason;
with `--anew` in front it draws others.
"""

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from shardwise.catalog.gpus import known_gpus, parse_hardware
from shardwise.catalog.models import find_model, known_models
from shardwise.errors import ShardwiseError
from shardwise.plan.time.step import forecast_time
from shardwise.spec.support.attention import attention_refusal
from shardwise.spec.support.trained import execution_refusals
from tests.unit.plan.asking import Execution, Layout, forecast_memory, job, work

SEED, COUNT = 46, 500
STORED = Path(__file__).with_name("drawn.tsv")
#: Why there are these answers: a line for each time that they were written, the last for today's.
REASONS = Path(__file__).with_name("drawn_reasons.txt")
#: How far an answer may move; how near to what there is the upper end of a peak lies where a
#: verdict may change.
MOVES, NEAR = 0.02, 0.012
#: The share of a GPU's memory that a peak takes: less is a toy, more nobody would ask for.
_LEAST, _MOST = 0.1, 3.0
_AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp")


class Answer(NamedTuple):
    """Peak and its upper end in bytes, what there is, and seconds of a step."""

    peak: int
    high: int
    capacity: int
    seconds: float

    @property
    def fits(self) -> bool:
        return self.high <= self.capacity


class Drawn(NamedTuple):
    """Keys of the job, the layout and the execution; `document`: the mean of a packed row."""

    model: str
    hardware: str
    keys: str
    layout: str
    execution: str
    document: int


@cache
def _shape(name: str):
    return find_model(name, offline=True)


def answer(drawn: Drawn) -> Answer:
    """Today's forecast. Raises ShardwiseError where refused, ValueError for a wrong layout."""
    model, cluster = _shape(drawn.model), parse_hardware(drawn.hardware)
    asked = job(**json.loads(drawn.keys))
    execution = Execution(layout=Layout(**json.loads(drawn.layout)), **json.loads(drawn.execution))
    refused = execution_refusals(asked, execution, model=model)
    kernel = attention_refusal(execution.attn_implementation, cluster.gpu, precision=execution.precision)
    if refused or kernel or (execution.reduce_once and not execution.may_reduce_once):
        raise ValueError(refused or kernel or "it reduces once a step anyway")
    done = work(asked, model, execution, drawn.hardware)
    memory = forecast_memory(done)
    seconds = forecast_time(replace(done, document=drawn.document or None)).step_seconds
    return Answer(memory.peak_bytes, memory.peak_high_bytes, memory.capacity_bytes, seconds)


Row = tuple[Drawn, int, bool, float]


def stored() -> Iterator[Row]:
    """Each question with the peak, verdict and seconds of when somebody last looked."""
    for line in STORED.read_text(encoding="utf-8").splitlines():
        *question, document, peak, fits, seconds = line.split("\t")
        yield Drawn._make([*question, int(document)]), int(peak), bool(int(fits)), float(seconds)


def compared() -> tuple[list[Row], list[str]]:
    """The questions, with today's answers where these moved; and what moved, in words."""
    rows, moved = list(stored()), list[str]()
    for at, (drawn, peak, fits, seconds) in enumerate(rows):
        said = answer(drawn)
        far = {"peak": said.peak / peak - 1, "step": said.seconds / seconds - 1}
        here = [f"{name} {by:+.2%}: {drawn}" for name, by in far.items() if abs(by) > MOVES]
        if said.fits != fits and abs(said.high / said.capacity - 1) > NEAR:
            here.append(f"fits {said.fits} at {said.high / said.capacity:.3f} of what there is: {drawn}")
        if here:
            rows[at] = (drawn, said.peak, said.fits, said.seconds)
        moved += here
    return rows, moved


def digest() -> str:
    """Of the stored answers."""
    return sha256(STORED.read_bytes()).hexdigest()[:12]


def write(rows: Iterable[Row], *, reason: str) -> None:
    """Keeps answers. Raises SystemExit: nobody says why."""
    if not reason.strip():
        raise SystemExit("stored answers are written with a reason: add in a sentence what moves them, and why")
    with STORED.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None)
        lines.writerows((*drawn, peak, int(fits), f"{seconds:.6g}") for drawn, peak, fits, seconds in rows)
    with REASONS.open("a", encoding="utf-8") as file:
        file.write(f"{datetime.now(UTC):%Y-%m-%d} {digest()} {' '.join(reason.split())}\n")


def draw() -> Iterator[tuple[Drawn, Answer]]:
    return islice(_answered(Random(SEED)), COUNT)


def _answered(random: Random) -> Iterator[tuple[Drawn, Answer]]:
    while True:
        drawn = _draw(random)
        try:
            answered = answer(drawn)
        except (ShardwiseError, ValueError):
            continue
        if _LEAST <= answered.peak / answered.capacity <= _MOST:
            yield drawn, answered


def _draw(random: Random) -> Drawn:
    def one_of(*values: Any) -> Any:
        return random.choice(values)

    nodes, each = one_of((1, 1), (1, 2), (1, 4), (1, 8), (1, 8), (2, 8), (4, 8), (8, 8))
    layout, left = {}, nodes * each
    for axis in random.sample(_AXES, len(_AXES)):
        degree = one_of(*(2**power for power in range(left.bit_length())))
        layout[axis], left = degree, left // degree
    layout[one_of("dp_shard", "dp_shard", "dp_replicate")] *= left
    if layout["dp_shard"] > 1:
        layout |= one_of({}, {}, *({"zero_stage": stage, "reshard_after_forward": False} for stage in (1, 2)))
        layout |= one_of({}, {}, {}, {"min_num_params": 10**9}, {"prefetch": 2})
    if layout["pp"] > 1:
        layout["schedule"] = one_of("1f1b", "gpipe", "interleaved", "zero_bubble", "sequential")
    if random.random() < 0.2:
        layout["ep"] = 2
    method, packing = one_of("full", "lora", "qlora"), random.random() < 0.4
    length = one_of(512, 1024, 2048, 4096, 8192, 32768)
    size, micros = one_of(1, 1, 2, 4, 8), one_of(1, 2, 4, 8, 16)
    batch = size * micros * layout["dp_replicate"] * layout["dp_shard"]
    keys: dict[str, Any] = {"method": method, "data": {"max_length": length, "packing": packing}}
    keys["train"] = {"global_batch_size": batch, "weight_decay": one_of(0.0, 0.1)}
    if method != "full":
        targets = one_of("all-linear", "all-linear", ["q_proj", "k_proj", "v_proj", "o_proj"])
        keys["lora"] = {"r": one_of(8, 16, 64), "lora_dropout": one_of(0.0, 0.0, 0.05), "target_modules": targets}
        keys["lora"] |= one_of({}, {}, {}, {}, {"use_dora": True}, {"modules_to_save": ["embed_tokens", "lm_head"]})
    execution = {
        "micro_batch_size": size,
        "gradient_accumulation_steps": micros,
        "gradient_checkpointing": one_of("none", "selective", "full", "full", "offloaded", "selective_offloaded"),
        "offload": one_of("none", "none", "none", "optimizer", "parameters"),
        "precision": one_of("mixed", "mixed", "mixed", "bf16", "fp16", "fp32"),
        "optimizer": one_of("adamw", "adamw", "adamw_foreach", "adamw_8bit", "sgd", "adafactor"),
        "loss": one_of("chunked", "chunked", "full"),
        "attn_implementation": one_of("sdpa", "sdpa", "varlen", "eager", "flash_attention_2"),
        "compile": random.random() < 0.3,
        "reduce_once": random.random() < 0.3,
    }
    keys["train"] |= {"optimizer": execution["optimizer"]}
    if layout.get("schedule") == "zero_bubble":
        execution |= {"gradient_checkpointing": "none", "compile": False}
    models = [name for name in sorted(known_models()) if "ep" not in layout or _shape(name).has_experts]
    name, gpu = random.choice(models), random.choice(sorted(known_gpus()))
    # A layout's, a job's and an execution's own defaults are left out.
    kept = {key: value for key, value in layout.items() if value != 1 or key == "zero_stage"}
    plain = Execution(layout=Layout(), micro_batch_size=0, gradient_accumulation_steps=0)
    changed = {key: value for key, value in execution.items() if value != getattr(plain, key)}
    document = random.randrange(length // 8, length) if packing else 0
    hardware = f"{nodes} x {each}x {gpu}" if nodes > 1 else f"{each}x {gpu}"
    return Drawn(name, hardware, _json(keys), _json(kept), _json(changed), document)


def _json(keys: dict[str, Any]) -> str:
    return json.dumps(keys, separators=(",", ":"))


def main(*words: str) -> None:
    if words[:1] == ("--anew",):
        write(((drawn, said.peak, said.fits, said.seconds) for drawn, said in draw()), reason=" ".join(words[1:]))
    else:
        write(compared()[0], reason=" ".join(words))


if __name__ == "__main__":
    main(*sys.argv[1:])
