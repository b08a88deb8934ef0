"""Keeps docs/support.md equal to the rules of spec/support: what is trained, how it is proven, what is refused.

python tools/matrix.py            # exits 1 where the page is out of date
python tools/matrix.py --write    # renews it
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from shardwise.catalog.families.known import FAMILIES
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Offload, OptimizerName, Precision
from shardwise.spec.support.rows import OWN_LINEAR_LAYERS
from shardwise.spec.support.splits import NOT_IN_PARTS, TENSOR_FAMILIES
from shardwise.spec.support.trained import refusal

DOCUMENT = Path(__file__).parent.parent / "docs/support.md"

#: Ways of spreading the data, at the fewest ranks that make each what it is.
DATA = {
    "one copy": Layout(),
    "ddp": Layout(dp_replicate=2),
    "zero1": Layout(dp_shard=2, zero_stage=1, reshard_after_forward=False),
    "zero2": Layout(dp_shard=2, zero_stage=2, reshard_after_forward=False),
    "fsdp": Layout(dp_shard=2),
    "hsdp": Layout(dp_replicate=2, dp_shard=2),
}

#: Ways of splitting the model, put around or inside those.
SPLITS: dict[str, Callable[[Layout], Layout]] = {
    "whole model": lambda layout: layout,
    "mp": lambda layout: replace(layout, pp=2, schedule="sequential"),
    "pp gpipe": lambda layout: replace(layout, pp=2, schedule="gpipe"),
    "pp 1f1b": lambda layout: replace(layout, pp=2),
    "pp interleaved": lambda layout: replace(layout, pp=2, schedule="interleaved"),
    "pp zero_bubble": lambda layout: replace(layout, pp=2, schedule="zero_bubble"),
    "tp": lambda layout: replace(layout, tp=2),
    "tp x pp 1f1b": lambda layout: replace(layout, tp=2, pp=2),
    "cp": lambda layout: replace(layout, cp=2),
}

METHODS = ("full", "lora", "qlora")


def cells() -> Iterator[tuple[str, str, Layout]]:
    """(data, split, layout) of the whole table."""
    for data, layout in DATA.items():
        for split, change in SPLITS.items():
            yield data, split, change(layout)


def _cell(layout: Layout) -> str:
    trained = [method for method in METHODS if refusal(method=method, layout=layout) is None]
    return f"{', '.join(trained)} (CPU)" if trained else "refused"


def _all(values: Any) -> str:
    return ", ".join(get_args(values))


def page() -> str:
    """The page as it should be."""
    dense = sorted(name for name, family in FAMILIES.items() if family.experts is None)
    mixtures = sorted(name for name in FAMILIES if name not in dense)
    lines = [
        "# What is trained, and what proves it",
        "",
        "Written by `python tools/matrix.py --write` from the rules that planner and trainer read (`spec/support`).",
        "",
        "*(CPU)*: proven on CPU: `make test-all` trains the cell in real processes over gloo, in float32, and holds",
        "loss and gradient norm of 20 steps within 1e-5 of one process, counts and learning rates exactly, the",
        "weights after SGD within 1e-5, frozen weights bit for bit; of each layout full or LoRA with a tied model, the",
        "other and QLoRA with an untied one (`tests/dist/parity/test_matrix.py`; more of each way in `test_parity.py`,",
        "`test_context.py`). No cell over several GPUs is proven on GPUs; [one has been measured](how/measured.md).",
        "*refused*: before any weight is loaded, with the reason and the nearest layout that works.",
        "",
        "| | " + " | ".join(SPLITS) + " |",
        "|---" * (len(SPLITS) + 1) + "|",
    ]
    for data in DATA:
        row = [_cell(layout) for of, _, layout in cells() if of == data]
        lines.append(f"| **{data}** | " + " | ".join(row) + " |")
    lines += [
        "",
        "- Stages (`mp`, `pp`): every family of the catalogue.",
        f"- Slices (`tp`): {', '.join(TENSOR_FAMILIES)}; the degree must divide heads, key-value heads and MLP width.",
        f"- Whole models: the {len(dense)} families without experts whose config.json is known: {', '.join(dense)}.",
        "  One that leaves out blocks at random (`layerdrop`, as OPT may) trains on one process.",
        "- Other families that the installed transformers has are built without weights: parameters are counted, and",
        "  what blocks keep is measured. Stages and slices where one forward shows that blocks split so, (CPU) in",
        "  `tests/dist/models/test_families.py`. Encoders, and decoders behind an encoder, are refused.",
        "- LoRA is PEFT's in every cell: rsLoRA, DoRA, `modules_to_save` (`test_lora_variants.py`; names and",
        "  counts of every family: `tests/unit/plan/work/test_saved_names.py`), dropout",
        "  (`test_draws.py`), stages with nothing to train, where adapters lie elsewhere.",
        f"- Precisions: {_all(Precision)}. Optimizers: {_all(OptimizerName)}. Offload: {_all(Offload)}.",
        "- Offload (`optimizer`: its states, with copies of the weights that it steps; `parameters`, or `all`:",
        "  weights, gradients and optimizer states) goes with every cell, (CPU) in",
        "  `tests/dist/memory/test_offload.py`; `parameters` not with `zero1` and `zero_bubble`. `optimizer` was",
        "  [measured](how/measured.md) once.",
        "- `gradient_checkpointing: offloaded` goes with every cell, `selective_offloaded` with every compiled one,",
        "  (CPU) in `tests/dist/memory/test_saved_on_host.py`, compiled blocks through TorchDynamo and AOTAutograd;",
        "  copies beside computation have not run on a GPU.",
        "- Rehearsed (`shardwise rehearse`): every cell, fp16 and every optimizer, (CPU) in",
        "  `tests/dist/memory/test_rehearsal.py`, but for compiled blocks (rehearsed eager, and said), and offload (of",
        "  what blocks save too), mixtures of experts and attention that has kernels for GPUs alone, which are refused",
        "  by name.",
        "- Compiled blocks (`train.compile`) go with every cell but `tp` and `zero_bubble`, packed rows,",
        "  recompute (not `selective` under `cp`) and offload included, (CPU) in `tests/dist/parity/test_compiled.py`,",
        "  through TorchDynamo and AOTAutograd",
        "  (each dense family of the catalogue in `tests/unit/parallel/test_compiled.py`). `auto` leaves others eager.",
        "- Units of several blocks (`min_num_params`) and gathering further ahead (`prefetch`) go with every cell",
        "  whose weights are sharded, (CPU) in `tests/dist/parity/test_parity.py`.",
        "- QLoRA quantises every linear layer but the head as bitsandbytes does (NF4, double quantisation), and gives",
        "  each rank its part: tensor parallel cuts between blocks of 64 elements, or is refused. Not with DoRA,",
        "  `compile`, the transposed matrices of GPT-2, matrices without whole blocks, or linear layers of a class of",
        f"  their own: {', '.join(OWN_LINEAR_LAYERS)}.",
        "- Context parallel (`cp`): every dense family but those whose attention compares positions itself or caps its",
        f"  scores ({', '.join(NOT_IN_PARTS)}), with `sdpa`, packed rows and windows included, stages and slices",
        "  where these are trained, (CPU) in `tests/dist/parity/test_context.py`; mixtures of the",
        "  catalogue too, whose experts `ep` then deals among ranks of `dp_shard` and `cp` together. Not hybrids.",
        f"- Mixtures of experts: {', '.join(mixtures)},",
        "  and others whose experts transformers stacks (without `cp`), in every cell, and `ep` with `ddp`, `zero1`,",
        "  `zero2`, `fsdp` and `hsdp`, in stages or not, (CPU) in `tests/dist/models/test_experts.py` and",
        "  `test_families.py`; full, LoRA on experts and routers too, QLoRA, with stacked experts in 4 bits too. Under",
        "  `tp` each rank has some of the experts whole, as transformers' plans of expert parallelism say, and what",
        "  its plan does not slice is computed whole; not with dropout, nor both in slices and in stages where its",
        "  plan has no stages. Routes are decided in float32 and without noise, which is said where a model asks for",
        "  it; correction biases are kept as they are. `ep` not with `tp` or selective recompute, nor where every",
        "  token runs through every expert (Llama 4); `compile` not at all. The balance of routers",
        "  (`output_router_logits`) is that of the global batch. Over more ranks than experts FSDP cuts inside",
        "  each, where that is even.",
        "- fp16, Adafactor and 8-bit AdamW: layouts in `tests/dist/parity/test_precision.py` (CPU). Adafactor and",
        "  8-bit AdamW are not trained with offload, 8-bit AdamW not under `tp`.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Compares, or writes."""
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(page(), encoding="utf-8")
    elif DOCUMENT.read_text(encoding="utf-8") != page():
        sys.exit(f"docs/{DOCUMENT.name} is not what the rules say; run: python tools/matrix.py --write")


if __name__ == "__main__":
    main()
