"""The model card of a result, fit to publish, and what its files call the base."""

import json
from pathlib import Path
from typing import Any

from shardwise.catalog.hub import is_hub_id
from shardwise.catalog.models import hub_id
from shardwise.data.read.sources import KINDS
from shardwise.spec.job.file import read_job
from shardwise.spec.job.keys import Job
from shardwise.spec.job.rope import RopeScaling
from shardwise.spec.run import RunDirectory, read_json, read_metrics

#: By what transformers loads a language model alone.
LANGUAGE_MODEL = "AutoModelForCausalLM"

#: Keys in which tools leave the folder that a file was read from.
_TRACES = frozenset({"_name_or_path", "name_or_path"})


def base_name(model: str) -> tuple[str, bool]:
    """What files call the model of a job, and whether that is a folder of this machine: a hub id, a
    folder as the job names it from where it is run, another by its own name alone."""
    path = Path(model)
    if not path.exists():
        return hub_id(model), False
    folder = path.parent if path.is_file() else path
    repository = folder.resolve().parent
    if repository.name == "snapshots" and repository.parent.name.startswith("models--"):  # the hub's cache
        return repository.parent.name.removeprefix("models--").replace("--", "/"), False
    is_relative = not path.is_absolute() and folder.name
    return (str(folder) if is_relative else folder.resolve().name), True


def remove_traces(folder: Path) -> None:
    """Removes from the configurations in a folder the names of folders that they were read from."""
    for path in folder.glob("*config.json"):
        text = path.read_text(encoding="utf-8")
        kept = json.loads(text, object_pairs_hook=lambda said: {k: v for k, v in said if k not in _TRACES})
        if kept != json.loads(text):
            path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


#: Puts stacked experts, which bitsandbytes leaves wide, into 4 bits as training had them: a stack
#: is written out while its block is at work. `docs/howto/adapter.md` has it too.
EXPERTS_LOADER = """\
def put_experts_in_4_bits(model):
    for block in list(model.modules()):
        for held in getattr(block, "experts", torch.nn.Identity()).modules():
            for name, stack in [(n, p) for n, p in held.named_parameters(recurse=False) if p.ndim == 3]:
                as_trained = {"blocksize": 64, "compress_statistics": True, "quant_type": "nf4"}
                parts = [quantize_4bit(expert, **as_trained) for expert in stack.detach()]
                delattr(held, name)

                def write_out(*_, held=held, name=name, parts=parts):
                    stack = torch.stack([dequantize_4bit(*part) for part in parts])
                    held.register_parameter(name, torch.nn.Parameter(stack, requires_grad=False))

                block.register_forward_pre_hook(write_out)
                block.register_forward_hook(lambda *_, held=held, name=name: delattr(held, name))
"""


def model_card(
    run: RunDirectory,
    *,
    base: str,
    is_local: bool,
    merged: str | None = None,
    loader: str = LANGUAGE_MODEL,
    experts: bool = False,
) -> str:
    """The card of a run's result, or of what was `merged`. A local base appears by its name;
    `loader`: transformers' class; `experts`: stacked ones were in 4 bits. No license is chosen."""
    job, data = read_job(run.resolved), (read_json(run.data) or {}).get("train") or {}
    adapter, name = job.adapters is not None and merged is None, Path(base).name if is_local else base
    sources, title = [_source(one) for one in data.get("sources", [])], run.root.resolve().name
    tags = [f"base_model:{'adapter' if adapter else 'finetune'}:{name}", "shardwise", "transformers"]
    front = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation" if loader == LANGUAGE_MODEL else "image-text-to-text",
        "base_model": name,
        "tags": tags if job.adapters is None else [*tags, "lora"],
        "datasets": [label for label, on_hub in sources if on_hub],
    }
    lines = "".join(f"{key}: {json.dumps(said, ensure_ascii=False)}\n" for key, said in front.items() if said)
    also = " and in `base_model_name_or_path` of `adapter_config.json`" if adapter else ""
    note = _NOTE.format(base=name, also=also) if is_local else ""
    method = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}[job.method]
    how = "merged into it" if merged else "an adapter on it" if adapter else "the whole model"
    facts = {"data": ", ".join(f"`{label}`" for label, _ in sources), **_facts(run, job, counts=data)}
    facts["merged weights"] = merged or ""
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items() if value != "")
    in_4_bits = job.method == "qlora"
    rope = job.rope_scaling if adapter else None
    code = _code(title, base=name if adapter else None, in_4_bits=in_4_bits, loader=loader, experts=experts, rope=rope)
    if rope is not None:
        note += _ROTATION.format(kind=rope.rope_type)
    return (
        f"---\n{lines}---\n\n# {title}\n\n`{name}` after {method}, {how}; trained with Shardwise.\n{note}\n"
        f"## Use\n\n```python\n{code}\n```\n\n## Training\n\n| what | value |\n|---|---|\n{rows}\n"
    )


def _code(
    title: str, *, base: str | None, in_4_bits: bool, loader: str, experts: bool, rope: RopeScaling | None
) -> str:
    """How a model is loaded, or an adapter on its base, which may be in 4 bits or stretched."""
    here, classes = "  # this folder, or its hub id", f"{loader}, AutoTokenizer"
    imports, quantised, option = [f"from transformers import {classes}", ""], list[str](), ""
    model = [f'model = {loader}.from_pretrained("{title}"){here}']
    if base is not None and in_4_bits:
        imports = ["import json", "", "from peft import PeftModel", f"{imports[0]}, BitsAndBytesConfig", ""]
        settings = f'json.load(open("{title}/quantization_config.json"))'
        quantised, option = [f"quantised = BitsAndBytesConfig.from_dict({settings})"], ", quantization_config=quantised"
    elif base is not None:
        imports = ["from peft import PeftModel", *imports]
    if base is not None:
        if rope is not None:
            imports = [line.replace("import Auto", "import AutoConfig, Auto") for line in imports]
            quantised += _stretched(base, rope)
            option += ", config=config"
        model = [f'model = {loader}.from_pretrained("{base}"{option})']
        model += [f'model = PeftModel.from_pretrained(model, "{title}"){here}']
    if base is not None and experts:
        functions = "from bitsandbytes.functional import dequantize_4bit, quantize_4bit"
        imports = [*imports[:1], "", "import torch", functions, *imports[2:]]
        model = ["", "", EXPERTS_LOADER, "", *model, "put_experts_in_4_bits(model)"]
    return "\n".join([*imports, *quantised, *model, f'tokenizer = AutoTokenizer.from_pretrained("{title}")'])


def _stretched(base: str, rope: RopeScaling) -> list[str]:
    """How the configuration of a base gets the rotation that an adapter was trained with."""
    original = "original_max_position_embeddings"
    from_base = f'"{original}": text.max_position_embeddings, ' if rope.rope_type == "yarn" else ""
    return [
        f'config = AutoConfig.from_pretrained("{base}")',
        "text = config.get_text_config()",
        'kept = {key: text.rope_parameters[key] for key in ("rope_theta", "partial_rotary_factor") '
        "if key in text.rope_parameters}",
        f"text.rope_parameters = {{**kept, {from_base}**{rope.stated!r}}}",
    ]


def _source(one: dict[str, Any]) -> tuple[str, bool]:
    """(name, whether it is a hub id) of a source that was trained on."""
    path, files = one["path"], [file["label"] for file in one["files"]]
    on_hub = is_hub_id(path) and all(Path(label).suffix.lower() not in KINDS for label in files)
    return (path, True) if on_hub else (Path(path).resolve().name, False)


def _facts(run: RunDirectory, job: Job, *, counts: dict[str, Any]) -> dict[str, Any]:
    """Settings, losses and versions, empty if not known. `counts`: of the data."""
    train, lora, adapter, metrics = job.train, job.adapters, "", read_metrics(run)
    evaluated = [record["eval_loss"] for record in metrics if record.get("eval_loss") is not None]
    losses = [f"{record['loss']:.4f}" for record in metrics if record.get("loss") is not None]
    versions, used = read_json(run.environment) or {}, ("shardwise", "torch", "transformers", "peft", "python")
    if lora is not None:
        options = {"rsLoRA": lora.use_rslora, "DoRA": lora.use_dora, **dict.fromkeys(lora.modules_to_save, True)}
        adapter = ", ".join([f"r {lora.r}", f"lora_alpha {lora.lora_alpha:g}", *(n for n, on in options.items() if on)])
    return {
        "rows, tokens": f"{counts.get('num_rows', 0):,}, {counts.get('num_tokens', 0):,}" if counts else "",
        "adapter": adapter,
        "maximum length": job.data.max_length,
        "steps": metrics[-1]["step"] if metrics else "",
        "global batch size": train.global_batch_size,
        "learning rate": f"{train.learning_rate:g}, {train.lr_scheduler_type}",
        "optimizer, precision": f"{train.optimizer}, {train.precision}",
        "seed": train.seed,
        "loss of the first and last step": " and ".join([losses[0], losses[-1]]) if losses else "",
        "evaluation loss": f"{evaluated[-1]:.4f}" if evaluated else "",
        "versions": ", ".join(f"{name} {versions[name]}" for name in used if versions.get(name)),
    }


_ROTATION = """
> It was trained with rotary positions stretched (`rope_scaling`, {kind}), which `adapter_config.json` cannot say: give
> the base the `rope_parameters` below wherever the adapter is used.
"""

_NOTE = """
> `{base}` is the name of a folder on the machine that trained it. Before publishing, put the hub id of that model in
> its place here, in `base_model` above{also}.
"""
