"""Keeps docs/seeds.md equal to the planner: rules of thumb beside its forecasts, and why they differ.

python tools/seeds.py            # exits 1 where the page is out of date
python tools/seeds.py --write    # renews it
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan.answer import make_plan
from shardwise.plan.memory.forecast import forecast_memory, holdings_of
from shardwise.plan.time.step import forecast_time
from shardwise.plan.work.inventory import take_inventory
from shardwise.plan.work.work import Work, work_of
from shardwise.spec.job.file import parse_job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import Plan, TimeForecast

DOCUMENT = Path(__file__).parent.parent / "docs/seeds.md"
GIB = 2**30

ZERO = {
    1: Layout(dp_shard=64, zero_stage=1, reshard_after_forward=False),
    2: Layout(dp_shard=64, zero_stage=2, reshard_after_forward=False),
    3: Layout(dp_shard=64),
}
#: The strategies of the runs that this project began with, on four GPUs.
RUNS = {"mp": Layout(pp=4, schedule="sequential"), "ddp": Layout(dp_replicate=4), "fsdp": Layout(dp_shard=4)}
#: Model -> micro-batch, accumulation, and what was told: strategy -> (seconds, utilisation).
TOLD = {
    "tinyllama-1.1b": (16, 2, {"ddp": (59, 0.90), "mp": (233, 0.24)}),
    "codellama-34b": (4, 4, {"fsdp": (1800, 1.0), "mp": (2820, 0.20)}),
}
ROWS, TOKENS = 1024, 1024


def _work(model: str, layout: Layout, text: str = "", *, hardware: str = "1x H100-SXM", **keys: object) -> Work:
    shape, job = find_model(model, offline=True), parse_job(f"model: {model}\n{text}")
    steps = {"micro_batch_size": 1, "gradient_accumulation_steps": 1, **keys}
    return work_of(
        job,
        model=shape,
        cluster=parse_hardware(hardware),
        execution=Execution(layout=layout, **steps),  # type: ignore[arg-type]
        inventory=take_inventory(job, shape),
    )


def states_bytes(model: str, layout: Layout | None = None, **keys: object) -> int:
    """Weights, gradients and optimizer states of the fullest rank, in full fine-tuning."""
    return max(
        held.weights + held.gradients + held.optimizer for held in holdings_of(_work(model, layout or Layout(), **keys))
    )


def run_of(model: str, strategy: str) -> tuple[float, TimeForecast]:
    """Seconds of 1,024 rows of 1,024 tokens under LoRA on four RTX 6000 Ada, and the forecast they are from."""
    micro, accumulation, _ = TOLD[model]
    layout = RUNS[strategy]
    batch = micro * accumulation * layout.data_world_size
    text = f"method: lora\ntrain: {{global_batch_size: {batch}}}\n"
    keys = {"micro_batch_size": micro, "gradient_accumulation_steps": accumulation}
    forecast = forecast_time(_work(model, layout, text, hardware="4x RTX-6000-Ada", **keys))
    return ROWS * TOKENS / forecast.tokens_per_second, forecast


def _rules() -> Iterator[tuple[str, str, str]]:
    """(rule of thumb, forecast, why)."""
    seven, eight = find_model("llama-2-7b", offline=True), find_model("llama-3-8b", offline=True)
    per = states_bytes("llama-2-7b") / seven.num_parameters
    yield (
        "Full mixed-precision AdamW: 16 bytes per parameter",
        f"{per:.2f}",
        "The rule counts 2 + 2 + 12 (16-bit copies, and masters, momentum and variance in 32). Here 4 + 4 + 8: the "
        "weights are the masters, and no 16-bit copy outlives its use.",
    )
    for stage, rule in ((1, "4x"), (2, "8x"), (3, "Nx, here 64x")):
        saved = states_bytes("llama-2-7b") / states_bytes("llama-2-7b", ZERO[stage])
        why = {
            1: "Of 4 + 4 + 8 only the 8 are sharded; of 2 + 2 + 12, the 12 are.",
            2: "`zero2` is FSDP2 that keeps gathered weights through a step: between steps all three are sharded, and "
            "during a step the gathered 16-bit weights come on top.",
            3: "As the rule says, less what does not divide.",
        }[stage]
        yield f"ZeRO-{stage} over 64 GPUs saves {rule} of the states", f"{saved:.1f}x", why
    half = states_bytes("llama-3-8b", precision="bf16")
    blocks = 8 * eight.block_parameters
    yield (
        "Llama-3-8B at half precision: model, gradients and optimizer take about 56 GB",
        f"{half / 1e9:.1f} GB",
        f"8 bytes for each of 8.03 billion parameters. 56 GB is 8 bytes for 7 billion: the blocks alone "
        f"({blocks / 1e9:.1f} GB), without embedding and head, an eighth of this model with its "
        "vocabulary of 128,256.",
    )
    alone = forecast_memory(_work("qwen2.5-32b", Layout(), precision="bf16", gradient_checkpointing="full"))
    yield (
        "A 30B model cannot be trained on one 80 GB GPU in 16 bits at batch 1",
        f"{alone.peak_bytes / GIB:.0f} GiB for one sequence",
        "8 bytes per parameter before the first activation.",
    )
    yield (
        "LoRA of rank 8 on a 1024 x 1024 matrix trains 1/64 of it",
        f"1/{1 / _adapted_share():.0f}",
        "r (rows + columns) of rows x columns.",
    )
    text = "method: qlora\ndata: {max_length: 512}\n"
    keys = {"gradient_checkpointing": "full", "optimizer": "adamw_8bit"}
    quantised = forecast_memory(_work("llama-2-70b", Layout(), text, hardware="1x RTX-6000-Ada", **keys))
    yield (
        "In 4 bits, LoRA trains a 65B model on one 48 GB GPU",
        f"{quantised.peak_bytes / GIB:.0f} GiB (70B, 512 tokens)",
        "Half a byte per parameter and its scales; embedding and head stay wide.",
    )


def _adapted_share() -> float:
    """Trained elements over those of the matrices they adapt."""
    sizes = {"hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 100}
    shape = shape_from_data({"model_type": "llama", **sizes}, file="config.json")
    job = parse_job("model: m\nmethod: lora\nlora: {r: 8, target_modules: [q_proj]}\n")
    return take_inventory(job, shape).trained_elements / (2 * 1024 * 1024)


def _runs() -> Iterator[str]:
    """Rows of the table of runs: each strategy, and how many times as long model parallel takes."""
    for model, (micro, accumulation, told) in TOLD.items():
        found = {strategy: run_of(model, strategy) for strategy in told}
        for strategy, (seconds, busy) in told.items():
            took, forecast = found[strategy]
            yield (
                f"| {model}, batch {micro}, accumulation {accumulation} | {strategy} | {seconds:,} s | {took:,.0f} s | "
                f"{busy:.0%} | {forecast.gpu_utilization:.0%} |"
            )
        first = next(strategy for strategy in told if strategy != "mp")
        rule, ratio = told["mp"][0] / told[first][0], found["mp"][0] / found[first][0]
        yield f"| | mp / {first} | {rule:.2f} | {ratio:.2f} | | |"


def _plan(model: str, batch: int, *, layout: str = "auto") -> Plan:
    text = f"model: {model}\nmethod: lora\nlayout: {layout}\ntrain: {{global_batch_size: {batch}}}\n"
    cluster = parse_hardware("4x RTX-6000-Ada")
    return make_plan(parse_job(text), model=find_model(model, offline=True), cluster=cluster, num_rows=ROWS)


def _choices() -> Iterator[str]:
    for model, batch in (("tinyllama-1.1b", 128), ("codellama-34b", 64)):
        among, best = _plan(model, batch, layout="[mp, ddp, fsdp]").best, _plan(model, batch).best
        assert among is not None
        assert best is not None
        execution = best.execution
        yield (
            f"- {model}, {batch} sequences a step: "
            f"`layout: [mp, ddp, fsdp]` takes **{among.execution.layout.strategy}**. "
            f"`layout: auto` takes {execution.layout.strategy} at a micro-batch of {execution.micro_batch_size} and "
            f"{execution.gradient_accumulation_steps} forwards, {best.time.total_seconds:,.0f} s, "
            f"{best.time.gpu_utilization:.0%} busy."
        )


def page() -> str:
    """The page as it should be."""
    rules = [f"| {rule} | {forecast} | {why} |" for rule, forecast, why in _rules()]
    lines = [
        "# Rules of thumb, and what is forecast",
        "",
        "Written by `python tools/seeds.py --write`; `tests/unit/plan/test_seeds.py` holds the figures.",
        "",
        "| rule of thumb | forecast | why |",
        "|---|---|---|",
        *rules,
        "",
        "## Two fine-tuning runs",
        "LoRA on four RTX 6000 Ada (PCI Express, no NVLink), 1,024 rows of 1,024 tokens: seconds of the run and GPU",
        "utilisation as nvidia-smi shows it, as reported and as forecast.",
        "",
        "| run | strategy | reported | forecast | reported busy | forecast busy |",
        "|---|---|---|---|---|---|",
        *_runs(),
        "",
        "Ratios and utilisations are right within 25 %. Seconds are not: the forecast is of this trainer, without",
        "what was not reported (attention kernel, recompute, adapters' targets, how full the rows were), on links that",
        "carry what PCI Express carries where GPUs reach each other. On one GPU `make gpu` trains the first in real",
        "shape, and plans the second, or trains it too where disk and time allow: [table](how/measured.md).",
        "",
        "## Which one would it take?",
        *_choices(),
        "",
        "The pipeline for the 34B model was not among the reported runs: naive model parallel was the only way tried",
        "to cut the model in layers. A step of 64 sequences goes through four stages one sequence at a time, so that",
        "3 of 67 turns are a bubble, where 4 micro-batches would leave 3 of 7 idle;",
        "each turn sends 16 MiB to a neighbour, where `fsdp` gathers 47 GiB for each forward and again for each",
        "backward over the same links.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Compares, or writes."""
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(page(), encoding="utf-8")
    elif DOCUMENT.read_text(encoding="utf-8") != page():
        sys.exit(f"docs/{DOCUMENT.name} is not what the planner says; run: python tools/seeds.py --write")


if __name__ == "__main__":
    main()
