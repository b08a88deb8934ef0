"""`shardwise merge`: the adapter of a run into its base model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shardwise.cli.trials import AsJson

RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The output_dir of a training run.")]


def merge(
    run_dir: RunDir,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Write here instead of RUN_DIR/merged.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; left out: the base model's.")] = None,
    dequantised: Annotated[
        bool, typer.Option("--dequantised", help="QLoRA: into the base as training computed with it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Merge a run's adapter into its base model, and compare the logits of both.

    Exits 0: merged, 1: the logits differ, 2: bad input, such as a base model that has changed since.
    """
    from shardwise import api
    from shardwise.cli.console import make_console, print_json

    made = api.merge(run_dir, output=output, dtype=dtype, dequantised=dequantised)
    if as_json:
        print_json(made)
    else:
        make_console().print("\n".join(merged_lines(made, run_dir)), soft_wrap=True)


def merged_lines(made: dict[str, Any], run_dir: Path) -> list[str]:
    """What was merged, how far its logits are those of what was trained, and what to do with it."""
    folder = made["folder"]
    how = {"unquantised": ", which is not in 4 bits as it was in training", "dequantised": " in 4 bits, dequantised"}
    lines = [
        f"merged into {made['base']}{how.get(made['onto'], '')}",
        f"  model    {folder}, {made['dtype']}",
        f"largest difference of a logit from what was trained: {made['difference']:.1e}, and "
        f"{made['exact_difference']:.1e} on one base without rounding; of {made['rows']}, computed in "
        f"{made['computed_in']}, whose largest logit is {made['largest_logit']:.1f}",
    ]
    if Path(folder) == run_dir / "merged":
        lines.append(f"ask it: shardwise chat {run_dir} --merged")
    gguf = f"  python llama.cpp/convert_hf_to_gguf.py {folder} --outfile merged.gguf"
    return [*lines, "elsewhere:", f"  vllm serve {folder}", gguf, f"  hf upload my-name/my-model {folder}"]
