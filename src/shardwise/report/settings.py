"""Settings of the job, the execution and the environment as names and texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardwise.report.nouns import Setting
from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import AXES

MAX_CHARACTERS = 200


def execution_settings(execution: Execution) -> tuple[Setting, ...]:
    """The chosen execution."""
    layout = execution.layout
    axes = [f"{axis} {getattr(layout, axis)}" for axis in AXES if getattr(layout, axis) > 1]
    own = {key: value for key, value in execution.to_json().items() if key not in ("strategy", "layout")}
    named = {"strategy": layout.strategy, "layout": " × ".join(axes) or "one process", "processes": layout.world_size}
    return _settings({**named, **own}.items())


def job_settings(job: Job) -> tuple[Setting, ...]:
    """The job."""
    train, adapters = job.train, job.adapters
    facts: dict[str, Any] = {
        "method": job.method,
        "data": ", ".join(source.path for source in job.data.path) or "none",
        "max length": f"{job.data.max_length} tokens" + (", packed" if job.data.packing else ""),
        "global batch": f"{train.global_batch_size} sequences per step",
        "length": f"{train.max_steps} steps"
        if train.max_steps
        else f"{train.num_train_epochs:g} epoch" + ("" if train.num_train_epochs == 1 else "s"),
        "learning rate": f"{train.learning_rate:g}, {train.lr_scheduler_type}",
        "gradient clipping": f"{train.max_grad_norm:g}" if train.max_grad_norm else "none",
        "weight decay": f"{train.weight_decay:g}",
        "seed": train.seed,
    }
    if adapters:
        targets = adapters.target_modules
        facts["LoRA"] = f"r {adapters.r}, alpha {adapters.lora_alpha:g}, dropout {adapters.lora_dropout:g}"
        facts["LoRA on"] = targets if isinstance(targets, str) else ", ".join(targets)
    return _settings(facts.items())


def scalars(data: dict[str, Any] | None) -> tuple[Setting, ...]:
    """The strings and numbers of an object; nested values are left out."""
    return _settings((key, value) for key, value in (data or {}).items() if isinstance(value, (str, int, float)))


def _settings(facts: Iterable[tuple[str, Any]]) -> tuple[Setting, ...]:
    return tuple(Setting(name=name.replace("_", " "), value=_words(value)) for name, value in facts)


def _words(value: Any) -> str:
    match value:
        case bool():
            written = "yes" if value else "no"
        case float():
            written = f"{value:g}"
        case _:
            written = str(value)
    return written if len(written) <= MAX_CHARACTERS else written[:MAX_CHARACTERS] + "…"
