"""`shardwise merge`: the adapter of a run into its base model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shardwise.cli.trials import AsJson

RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The output_dir of a training run.")]

_PLACE, _MOVED = "FOLDER_OR_ID", "Where the base model lies, if it has moved; another model is refused."
BaseModel = Annotated[str | None, typer.Option("--base-model", metavar=_PLACE, help=_MOVED)]


def merge(
    run_dir: RunDir,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Write here instead of RUN_DIR/merged.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; left out: the base model's.")] = None,
    dequantised: Annotated[
        bool, typer.Option("--dequantised", help="QLoRA: into the base as training computed with it.")
    ] = False,
    base_model: Annotated[str | None, typer.Option("--base", "--base-model", metavar=_PLACE, help=_MOVED)] = None,
    as_json: AsJson = False,
) -> None:
    """Merge a run's adapter into its base model, and compare the logits of both.

    Exits 0: merged, 1: the logits differ, 2: bad input, such as a base model that has changed since.
    """
    from shardwise import api
    from shardwise.cli.console import make_console, print_json

    made = api.merge(run_dir, output=output, dtype=dtype, dequantised=dequantised, base_model=base_model)
    if as_json:
        print_json(made)
    else:
        make_console().print("\n".join(merged_lines(made, run_dir)), soft_wrap=True)


def merged_lines(made: dict[str, Any], run_dir: Path) -> list[str]:
    """What was merged, how far its logits are those of what was trained, and what to do with it."""
    from shardwise import api

    folder, before, double = made["folder"], made.get("dtype_before"), made.get("float64_difference")
    how = {"unquantised": ", which is not in 4 bits as it was in training", "dequantised": " in 4 bits, dequantised"}
    changed = f"; it was {before} before" if before not in (None, made["dtype"]) else ""
    lines = [
        f"merged the adapter {run_dir / 'final'} into its base {made['base']}{how.get(made['onto'], '')}",
        f"  model    {folder}, {made['dtype']}{changed}",
        *([f"  kept     {', '.join(made['kept'])}: not written by a merge"] if made.get("kept") else []),
        f"largest difference of a logit from what was trained: {made['difference']:.1e}, and "
        f"{made['exact_difference']:.1e} on one base without rounding; of {made['rows']}, computed in "
        f"{made['computed_in']}, whose largest logit is {made['largest_logit']:.1f}",
    ]
    if double is not None:
        lines.append(f"  the adapter's updates are large, and float32 rounds so much; in float64 it is {double:.1e}")
    if Path(folder) == run_dir / "merged":
        lines.append(f"ask it: shardwise chat {run_dir} --merged")
    elsewhere = api.model_lines(folder, dtype=made["dtype"], stops=made.get("stops", []))
    return [*lines, "elsewhere:", *elsewhere, *api.publishing(Path(folder))]
