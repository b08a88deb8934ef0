"""The model card of a result, README.md, and what its files call the base: what is uploaded is fit to publish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardwise.catalog.hub import is_hub_id
from shardwise.catalog.models import hub_id
from shardwise.data.read.sources import KINDS
from shardwise.spec.job.file import read_job
from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory, read_json, read_metrics

#: Keys in which tools leave the folder that a file was read from.
_TRACES = frozenset({"_name_or_path", "name_or_path"})


def base_name(model: str) -> tuple[str, bool]:
    """What files call the model of a job, and whether that is a folder of this machine: a hub id, a folder as the job
    names it from where it is run, another by its own name alone."""
    path = Path(model).expanduser()
    if not path.exists():
        return hub_id(model), False
    folder = path.parent if path.is_file() else path
    repository = folder.resolve().parent
    if repository.name == "snapshots" and repository.parent.name.startswith("models--"):  # the hub's cache
        return repository.parent.name.removeprefix("models--").replace("--", "/"), False
    is_relative = not Path(model).is_absolute() and path == Path(model) and folder.name
    return (str(folder) if is_relative else folder.resolve().name), True


def remove_traces(folder: Path) -> None:
    """Removes from the configurations in a folder the names of folders that they were read from."""

    def without(said: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in said.items() if key not in _TRACES}

    for path in folder.glob("*config.json"):
        text = path.read_text(encoding="utf-8")
        kept = json.loads(text, object_hook=without)
        if kept != json.loads(text):
            path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def model_card(run: RunDirectory, *, base: str, is_local: bool, merged: str | None = None) -> str:
    """The card of a run's result, or of what was `merged` from it in some type. A base that is a local folder appears
    by its name, with a note."""
    job = read_job(run.resolved)
    adapter, name = job.adapters is not None and merged is None, Path(base).name if is_local else base
    how = "merged into it" if merged else "an adapter on it" if adapter else "the whole model"
    title = run.root.resolve().name
    also = " and in `base_model_name_or_path` of `adapter_config.json`" if adapter else ""
    note = _NOTE.format(base=name, also=also) if is_local else ""
    rows = "\n".join(f"| {key} | {value} |" for key, value in _facts(run, job, merged=merged))
    load = (_LOAD_IN_4_BITS if job.method == "qlora" and adapter else _LOAD_ADAPTER if adapter else _LOAD).format(
        base=name, title=title
    )
    method = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}[job.method]
    return (
        f"---\n{_front(run, base=name, adapter=adapter, job=job)}---\n\n# {title}\n\n`{name}` after {method}, {how}; "
        f"trained with Shardwise.\n{note}\n## Use\n\n{load}\n## Training\n\n| what | value |\n|---|---|\n{rows}\n"
    )


def _front(run: RunDirectory, *, base: str, adapter: bool, job: Job) -> str:
    """The YAML in front. No license: that is for whoever publishes to choose."""
    tags = [f"base_model:{'adapter' if adapter else 'finetune'}:{base}", "shardwise", "transformers"]
    tags += [] if job.adapters is None else ["lora"]
    said: dict[str, Any] = {"library_name": "peft" if adapter else "transformers", "pipeline_tag": "text-generation"}
    data = [label for label, on_hub in _data(run) if on_hub]
    said |= {"base_model": base, "tags": tags, **({"datasets": data} if data else {})}
    return "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in said.items())


def _data(run: RunDirectory) -> list[tuple[str, bool]]:
    """(name, whether it is a hub id) of each source that was trained on; of a file or folder its own name."""
    found = ((read_json(run.data) or {}).get("train") or {}).get("sources", [])
    labels = [(one["path"], [file["label"] for file in one["files"]]) for one in found]
    return [
        (path, True)
        if is_hub_id(path) and all(Path(label).suffix.lower() not in KINDS for label in files)
        else (Path(path).expanduser().resolve().name, False)
        for path, files in labels
    ]


def _facts(run: RunDirectory, job: Job, *, merged: str | None) -> list[tuple[str, Any]]:
    """Data, settings, losses and versions."""
    train, lora, metrics = job.train, job.adapters, read_metrics(run)
    counts = (read_json(run.data) or {}).get("train") or {}
    evaluated = [record["eval_loss"] for record in metrics if record.get("eval_loss") is not None]
    losses = [f"{value:.4f}" for value in (record.get("loss") for record in metrics) if value is not None]
    versions = read_json(run.environment) or {}
    used = ("shardwise", "torch", "transformers", "peft", "python")
    facts: list[tuple[str, Any]] = [
        ("data", ", ".join(f"`{label}`" for label, _ in _data(run))),
        ("rows, tokens", f"{counts.get('num_rows', 0):,}, {counts.get('num_tokens', 0):,}" if counts else ""),
        ("maximum length", job.data.max_length),
        ("steps", metrics[-1]["step"] if metrics else ""),
        ("global batch size", train.global_batch_size),
        ("learning rate", f"{train.learning_rate:g}, {train.lr_scheduler_type}"),
        ("optimizer, precision", f"{train.optimizer}, {train.precision}"),
        ("seed", train.seed),
        ("loss of the first and last step", " and ".join([losses[0], losses[-1]]) if losses else ""),
        ("evaluation loss", f"{evaluated[-1]:.4f}" if evaluated else ""),
        ("versions", ", ".join(f"{name} {versions[name]}" for name in used if versions.get(name))),
    ]
    if lora is not None:
        options = {"rsLoRA": lora.use_rslora, "DoRA": lora.use_dora, **dict.fromkeys(lora.modules_to_save, True)}
        beside = "".join(f", {name}" for name, on in options.items() if on)
        facts.insert(2, ("adapter", f"r {lora.r}, lora_alpha {lora.lora_alpha:g}{beside}"))
    return [(key, value) for key, value in [*facts, ("merged weights", merged or "")] if value != ""]


_NOTE = """
> `{base}` is the name of a folder on the machine that trained it. Before publishing, put the hub id of that model in
> its place here, in `base_model` above{also}.
"""

_LOAD = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{title}")  # this folder, or its hub id
tokenizer = AutoTokenizer.from_pretrained("{title}")
```
"""

_LOAD_ADAPTER = """```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{base}")
model = PeftModel.from_pretrained(model, "{title}")  # this folder, or its hub id
tokenizer = AutoTokenizer.from_pretrained("{title}")
```
"""

_LOAD_IN_4_BITS = """```python
import json

from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

quantised = BitsAndBytesConfig.from_dict(json.load(open("{title}/quantization_config.json")))
model = AutoModelForCausalLM.from_pretrained("{base}", quantization_config=quantised)
model = PeftModel.from_pretrained(model, "{title}")  # this folder, or its hub id
tokenizer = AutoTokenizer.from_pretrained("{title}")
```
"""
