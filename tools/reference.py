"""Keeps docs/reference/ equal to the program: the command line, the job file, plan.json and the run directory.

python tools/reference.py            # exits 1 where a page is out of date
python tools/reference.py --write    # renews them
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.models import ArgumentInfo

from shardwise.cli.main import VERBS
from shardwise.spec import run
from shardwise.spec.job.data import DataSpec, SourceSpec
from shardwise.spec.job.keys import Job, LayoutSpec, LoraSpec, RentSpec, TrainSpec
from shardwise.spec.job.preference import PreferenceSpec
from shardwise.spec.job.rope import RopeScaling
from shardwise.spec.layout.axes import Layout

DOCS = Path(__file__).parent.parent / "docs"
WRITTEN = "Written by `python tools/reference.py --write` from {source}.\n"

#: Heading of each section of a job file -> its model.
SECTIONS: dict[str, type[BaseModel]] = {
    "Top level": Job,
    "rope_scaling": RopeScaling,
    "data": DataSpec,
    "data.path (each source)": SourceSpec,
    "lora": LoraSpec,
    "preference": PreferenceSpec,
    "train": TrainSpec,
    "rent": RentSpec,
    "layout (as a product of degrees)": LayoutSpec,
}
#: Keys whose meaning is written nowhere else.
MEANINGS = {
    "data": "the rows to train on; keys below",
    "method": "what is trained: every weight, or LoRA adapters; with `qlora` of a model in 4 bits",
    "lora": "keys below; of lora and qlora",
    "preference": "keys below; of every objective but `sft`",
    "train": "keys below",
    "rent": "keys below; of `hardware: any`",
    "goal": "what the planner prefers among the candidates that fit",
    "output_dir": "the run directory",
    "r": "rank of the adapters; PEFT's own default is 8, with lora_alpha 8",
    "lora_alpha": "scale of the adapters, divided by r",
    "lora_dropout": "share of the adapters' inputs that is dropped",
    "target_modules": (
        "`all-linear`, every linear layer but the head, with experts and routers, as in PEFT; or names of modules to "
        "adapt"
    ),
    "use_rslora": "divide lora_alpha by the square root of r",
    "use_dora": "train magnitudes beside directions (DoRA)",
    "modules_to_save": "modules that are trained whole and saved with the adapter",
    "bias": "biases stay frozen",
    "num_train_epochs": (
        "passes over the rows, where max_steps is not set; a part of a step is a whole one, and the last step of each "
        "pass has the rows that are left"
    ),
    "max_steps": "optimizer steps in all, those among them that `fp16` skips",
    "lr_scheduler_type": (
        "how the learning rate changes after the warmup, as in Transformers: to 0 at the end by a straight line or "
        "half a cosine, or not at all; `constant` with a warmup is `constant_with_warmup`"
    ),
    "warmup_ratio": "share of all steps with a rising learning rate, rounded up; the rate of the first step is then 0",
    "warmup_steps": "or their number",
    "max_grad_norm": "gradients are clipped to this norm of all of them, over all ranks; 0 leaves them",
    "weight_decay": (
        "of matrices and embeddings, not of norms, biases and DoRA's magnitudes (which Trainer decays). Decoupled "
        "with AdamW and Adafactor: weights are multiplied by 1 - learning_rate x weight_decay. Coupled with `sgd`, as "
        "in PyTorch: added to the clipped gradient, and so to the momentum"
    ),
    "momentum": "of SGD",
    "seed": "of the order of rows, of which of them `eval_fraction` sets aside, of new weights and of dropout",
    "report_to": "experiment trackers, beside metrics.jsonl, of every step",
    "precision": (
        "`mixed`, which `auto` is on GPUs with bfloat16 (compute capability 8.0, Ampere, and newer), keeps trained "
        "weights, gradients and optimizer states in float32, frozen weights in bfloat16, and computes in bfloat16; "
        "`bf16` keeps everything in bfloat16; `fp32`, which `auto` is on CPU processes, in float32. `fp16`, which "
        "`auto` is on older GPUs, is `mixed` with float16 and a scale of the loss. Under `mixed` and "
        "`fp16` embeddings, the residual stream and outputs of norms are in 16 bits too, where torch.autocast leaves "
        "them in float32: float16 overflows sooner than there. A step whose gradients overflow is skipped and halves "
        "the scale; it counts as a step, in `max_steps` and in the learning rate's schedule (`skipped_step` in "
        "[metrics.jsonl](run.md#metricsjsonl))"
    ),
    "optimizer": (
        "`adamw`, which `auto` is, and `adamw_foreach` are PyTorch's, fused and not. `adamw_8bit` is bitsandbytes' "
        "with moments in blocks of 256 neighbouring elements of a row: matrices of fewer than 4096 elements or whose "
        "rows are no multiple of 256 keep moments of 32 bits, and the plan says how much that is; embeddings, which "
        "Trainer keeps in 32 bits, are treated as other matrices. `sgd` is PyTorch's. `adafactor` is PyTorch's too, "
        "and not the one that Trainer calls so: a step is `learning_rate` (at most 1 / sqrt(step)) times the root "
        "mean square of the tensor's elements (at least 0.001), where Trainer's takes the rate as it is"
    ),
    "micro_batch_size": "sequences of one forward on one GPU",
    "gradient_checkpointing": (
        "which activations are computed again in the backward; `offloaded` and `selective_offloaded`: as `full` and "
        "`selective`, with what blocks save in host memory meanwhile; the latter needs compiled blocks"
    ),
    "offload": "what lies in host memory",
    "loss": "`full` computes all logits at once; `chunked`, which `auto` is, of as many positions as fill 512 MiB",
    "attn_implementation": "attention kernel",
    "compile": "compile each decoder block with torch.compile; `auto` on GPUs where the run is long enough to earn it",
}
#: How the value of an option is written.
VALUES = {int: "N", float: "X", Path: "FILE", str: "TEXT"}
METRICS = {
    "step": ("count", "optimizer steps so far"),
    "epoch": ("number", "passes over the rows so far"),
    "loss": ("nats per token", "sum of token losses of the global batch over its number of trained tokens"),
    "grad_norm": ("number", "2-norm of all gradients, before clipping; null for a skipped step"),
    "learning_rate": ("number", "the learning rate of this step"),
    "tokens": ("count", "tokens of the global batch, without padding"),
    "trained_tokens": ("count", "tokens that count in the loss"),
    "step_seconds": ("seconds", "wall time of the step"),
    "tokens_per_second": ("1/s", "tokens / step_seconds, over all ranks"),
    "mfu": ("share", "model FLOPs per second over the dense peak of all ranks"),
    "gpu_utilization": ("share", "share of the time in which any kernel runs, as nvidia-smi counts; mean of all ranks"),
    "gpu_utilization_by_rank": ("list of shares", "the same of each rank"),
    "peak_memory_bytes": ("list of bytes", "peak of each rank since training began, as PyTorch's allocator counts"),
    "peak_reserved_bytes": ("list of bytes", "the most that each rank's allocator reserved; null on CPU processes"),
    "phase_peak_bytes": (
        "lists of bytes by phase",
        "peak of each rank in `forward_backward` and `optimizer_step`; on GPUs `loading`, `evaluation`, `saving` too",
    ),
}
SCALED_METRICS = {
    "loss_scale": ("number", "by what the loss of this step was multiplied"),
    "skipped_step": (
        "true or false",
        "gradients overflowed: nothing was updated, and `grad_norm` is null; the step counts all the same",
    ),
}
PREFERENCE_METRICS = {
    "rewards/chosen": ("number", "mean reward of chosen answers: `beta` times their log-ratio to the reference"),
    "rewards/rejected": ("number", "the same of rejected ones; of `orpo` and `simpo` `beta` times log p per token"),
    "rewards/margins": ("number", "the difference of the two"),
    "rewards/accuracies": ("share", "pairs whose chosen answer has the higher reward; not of `kto`"),
    "logps/chosen": ("nats", "mean log-probability of chosen answers; of `orpo` and `simpo` per token"),
    "logps/rejected": ("nats", "the same of rejected ones"),
    "kl": ("nats", "mean log-ratio of answers behind the prompts of others, at least 0; of `kto`"),
}


def cli_page() -> Iterator[str]:
    """The verbs with their arguments and options."""
    yield "# Command line\n"
    yield WRITTEN.format(source="the program's own arguments (`cli/`)")
    yield "| verb | what it does |\n|---|---|"
    for verb in VERBS:
        yield f"| [`shardwise {verb.__name__}`](#shardwise-{verb.__name__}) | {_first_sentence(verb)} |"
    yield "\n`--set KEY=VALUE` overrides any key of the [job file](job.md), for example"
    yield "`--set train.learning_rate=1e-4`. `SHARDWISE_DEBUG=1` shows the traceback of an error."
    for verb in VERBS:
        yield f"\n## shardwise {verb.__name__}\n"
        yield " ".join((inspect.getdoc(verb) or "").split()) + "\n"
        yield "| argument or option | meaning |\n|---|---|"
        hints = typing.get_type_hints(verb, include_extras=True)
        for name, parameter in inspect.signature(verb).parameters.items():
            kind, info = get_args(hints[name])[:2]
            shown = f" Default: {parameter.default}." if type(parameter.default) in (int, float) else ""
            yield f"| {_written(name, kind, info)} | {info.help or ''}{shown} |"
    yield ""


def _first_sentence(verb: Any) -> str:
    return (inspect.getdoc(verb) or "").split("\n\n")[0].replace("\n", " ")


def _written(name: str, kind: Any, info: Any) -> str:
    """An argument or option as `--help` writes it."""
    if isinstance(info, ArgumentInfo):
        return f"`{info.metavar or name.upper()}`"
    option = next(
        (one for one in (info.default, *(info.param_decls or ())) if str(one).startswith("--")),
        "--" + name.replace("_", "-"),
    )
    kinds = [kind, *get_args(kind)]
    value = info.metavar or next(word for one, word in VALUES.items() if one in kinds or one is str)
    return f"`{option}`" if kind is bool else f"`{option} {value}`".replace("|", "\\|")


def job_page() -> Iterator[str]:
    """Every key of a job file."""
    yield "# Job file\n"
    yield WRITTEN.format(source="the models that read job files (`spec/job/keys.py`, `spec/job/data.py`)")
    yield (
        "A job file is YAML. Unknown keys are errors, and the nearest valid key is named. All wrong keys and values "
        "are reported at once,"
    )
    yield (
        "each with its file and line. `auto` leaves a choice to the planner; a stated value restricts the search and "
        "is what runs."
    )
    yield (
        "[Use your own data](../howto/data.md) is about rows, [Models, data and options in detail](details.md) about "
        "what goes together.\n"
    )
    for heading, model in SECTIONS.items():
        described = _attributes(Layout if model is LayoutSpec else model)
        yield f"## {heading}\n"
        yield "| key | value | default | meaning |\n|---|---|---|---|"
        for name, field in model.model_fields.items():
            meaning = described.get(name) or MEANINGS.get(name, "")
            yield f"| `{name}` | {_value(field)} | {_default(field)} | {meaning} |"
        yield ""


def _attributes(model: type) -> dict[str, str]:
    """What a docstring's `Attributes` say of each name."""
    text = inspect.getdoc(model) or ""
    _, _, listed = text.partition("Attributes:\n")
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \S)", listed.rstrip()):
        names, colon, meaning = entry.strip().partition(":")
        if colon:
            found |= {name.strip(): " ".join(meaning.split()).rstrip(".") for name in names.split(",")}
    return found


def _value(field: FieldInfo) -> str:
    bounds = [words for rule in field.metadata for words in _bound(rule)]
    return ", ".join(dict.fromkeys([*_words(field.annotation), *bounds])).replace("|", "\\|")


def _bound(rule: Any) -> Iterator[str]:
    for name, sign in (("ge", "at least"), ("gt", "above"), ("lt", "below"), ("le", "at most")):
        bound = getattr(rule, name, None)
        if bound is not None and abs(bound) < 1e6:
            yield f"{sign} {bound:g}"


def _words(annotation: Any) -> Iterator[str]:
    """A type in the words of a job file."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        yield from (f"`{value}`" for value in inside)
    elif origin in (Union, types.UnionType):
        for part in inside:
            yield from _words(part)
    elif origin is typing.Annotated:
        yield from _words(inside[0])
        yield from (words for rule in inside[1:] for words in _bound(rule))
    elif origin is list:
        yield "a list of " + " / ".join(_words(inside[0]))
    elif origin is dict:
        yield f"{{one of {', '.join(_words(inside[0]))}: {', '.join(_words(inside[1]))}}}"
    elif annotation is type(None):
        return
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "keys below"
    else:
        yield {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[annotation]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel) or default is None or default in ([], {}):
        return "-"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def plan_page() -> Iterator[str]:
    """Every key of plan.json that its schema describes, two levels deep."""
    schema = json.loads((DOCS / "plan.schema.json").read_text(encoding="utf-8"))
    yield "# plan.json\n"
    yield WRITTEN.format(source="[`plan.schema.json`](../plan.schema.json)")
    yield "`shardwise plan --json` prints it, `--output FILE` writes it, and `shardwise train FILE` runs it."
    yield f"{schema['description']}\n"
    yield from _schema_rows("Top level", schema, schema)
    for name, part in schema.get("$defs", {}).items():
        if part.get("properties"):
            yield from _schema_rows(name, part, schema)


def _schema_rows(heading: str, part: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    yield f"## {heading}\n"
    yield "| key | type | meaning |\n|---|---|---|"
    for name, child in part["properties"].items():
        inside = child.get("items", child) if child.get("type") == "array" else child
        meaning = child.get("description") or _keys(inside)
        yield f"| `{name}` | {_schema_type(child, schema)} | {meaning} |".replace("\n", " ")
    yield ""


def _keys(child: dict[str, Any]) -> str:
    return ", ".join(f"`{key}`" for key in child.get("properties", {}))


def _schema_type(child: dict[str, Any], schema: dict[str, Any]) -> str:
    if "$ref" in child:
        name = child["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if schema["$defs"][name].get("properties") else name
    if "anyOf" in child:
        return " or ".join(_schema_type(one, schema) for one in child["anyOf"])
    if "enum" in child:
        return ", ".join(f"`{json.dumps(value)}`" for value in child["enum"])
    if "const" in child:
        return f"`{child['const']}`"
    if child.get("type") == "array" and isinstance(child.get("items"), dict):
        return "list of " + _schema_type(child["items"], schema)
    kinds = child.get("type", "any")
    return " or ".join(kinds) if isinstance(kinds, list) else kinds


def run_page() -> Iterator[str]:
    """The files of a run directory, and the keys of metrics.jsonl."""
    yield "# Run directory and metrics\n"
    yield WRITTEN.format(source="`spec/run.py`")
    yield "## Files\n"
    yield "| file | what it holds |\n|---|---|"
    folder = run.RunDirectory(Path("RUN"))
    described = _attributes(run.RunDirectory)
    for name, member in vars(run.RunDirectory).items():
        if name != "root" and isinstance(path := getattr(folder, name, None), Path):
            meaning = described.get(name) or (inspect.getdoc(member) or "").rstrip(".")
            yield f"| `{path.relative_to('RUN')}` | {' '.join(meaning.split()).removeprefix(f'{path.name}: ')} |"
    yield "| `checkpoint-STEP/` | a checkpoint: sharded weights, optimizer states, random generators and a manifest |"
    yield "\n## metrics.jsonl\n"
    yield "One JSON object for each optimizer step. `eval_loss` is added to the step after which an evaluation ran.\n"
    yield from _metric_rows(METRICS)
    yield "With `precision: fp16` each step has two more:\n"
    yield from _metric_rows(SCALED_METRICS)
    yield "Of [preferences](../howto/prefer.md) `loss` is the mean over pairs (`kto`: rows), and each step has more,"
    yield "an evaluation the same with `eval_` before them:\n"
    yield from _metric_rows({key: PREFERENCE_METRICS[key] for key in run.PREFERENCE_KEYS})


def _metric_rows(metrics: dict[str, tuple[str, str]]) -> Iterator[str]:
    yield "| key | unit | meaning |\n|---|---|---|"
    for key, (unit, meaning) in metrics.items():
        yield f"| `{key}` | {unit} | {meaning} |"
    yield ""


PAGES = {"cli": cli_page, "job": job_page, "plan": plan_page, "run": run_page}


def main() -> None:
    """Compares, or writes."""
    for name, page in PAGES.items():
        path, text = DOCS / f"reference/{name}.md", "\n".join(page())
        if "--write" in sys.argv[1:]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"docs/reference/{name}.md is not what the program says; run: python tools/reference.py --write")


if __name__ == "__main__":
    main()
