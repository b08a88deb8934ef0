"""Makes a Report from a run directory: settings, curves, counts and files."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from stat import S_ISREG
from typing import Any

from shardwise.errors import RunDirectoryError
from shardwise.report.compare import gap_notes, memory_comparisons, memory_report, time_comparisons, was_resumed
from shardwise.report.consistency import run_checks
from shardwise.report.contents import Curve, DataCounts, Example, FileEntry, Gap, NamedSetting, Report
from shardwise.report.fields import items, number, numbers, section, sections, text, whole, wholes
from shardwise.report.pages.run_page import report_html
from shardwise.report.run_files import LOST, Record, Sources, noted, planned, read_outcome, read_sources, taken
from shardwise.report.written import NOMINAL_TIMES
from shardwise.spec.data_facts import DataFacts
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import AXES
from shardwise.spec.layout.execution import Execution, padded_length
from shardwise.spec.plan.forecast import SeenMemory
from shardwise.spec.run import PREFERENCE_KEYS, RunDirectory, write_json, write_text

MAX_EXAMPLES = 5
MAX_EXAMPLE_CHARACTERS = 4000
MAX_POINTS = 600
MAX_CHARACTERS = 200

CURVES = ("loss", "eval_loss", "grad_norm", "learning_rate", "step_seconds")
#: Of preferences alone, by TRL's names.
PREFERENCE_CURVES = tuple(before + name for before in ("", "eval_") for name in PREFERENCE_KEYS)
NOISY_CURVES = ("loss", "grad_norm")
COUNTS = ("num_rows", "num_samples", "num_tokens", "num_trained_tokens", "longest", "num_truncated", "num_dropped")

FILES = {
    "job.yaml": "the job as written",
    "resolved.yaml": "the job with every default",
    "plan.json": "forecasts; the chosen one ran",
    "environment.json": "versions and devices",
    "data.json": "prepared data and its counts",
    "metrics.jsonl": "one record per optimizer step",
    "measured.json": "what each rank held and used",
    "logs": "output and phases of the ranks",
    "final": "the trained model or adapter",
}


def collect(run: RunDirectory, *, seen: SeenMemory | None = None) -> Report:
    """Reads a run directory, complete or not, with what is missing as `gaps`. `seen`: what is
    forecast for the rows that were seen. Raises RunDirectoryError: it is none."""
    sources = _without_others_memory(read_sources(run))
    plan, job, records = sources.plan, sources.job, sources.metrics
    candidate = plan.best if plan else None
    steps = taken(records, sources.starts, planned(plan))
    memory = memory_report(sources, candidate, steps, seen=seen if sources.measured else None)
    asked, model = (plan.job, plan.model) if plan else (None, None)
    hardware = (text(plan.hardware, "name") if plan else None) or (job.hardware if job else None)
    tokens, trained = wholes(records, "tokens"), wholes(records, "trained_tokens")
    scales, skipped = numbers(records, "loss_scale"), sum(record.get("skipped_step") is True for record in records)
    return Report(
        name=run.root.resolve().name,
        outcome=read_outcome(sources),
        model=job.model if job else text(asked, "model"),
        method=job.method if job else text(asked, "method"),
        strategy=candidate.execution.layout.strategy if candidate else None,
        hardware=hardware or text(sources.environment, "device"),
        num_parameters=whole(model, "num_parameters"),
        num_trainable_parameters=whole(model, "num_trainable_parameters"),
        execution=_execution_settings(candidate.execution) if candidate else (),
        job=(*_job_settings(job), *_lengths(sources)) if job else (),
        dtypes=_scalars(section(sources.measured, "dtypes")),
        environment=_scalars(sources.environment),
        tokens=sum(tokens) if tokens else None,
        trained_tokens=sum(trained) if trained else None,
        memory=memory,
        comparisons=(*memory_comparisons(memory), *time_comparisons(sources, candidate, steps)),
        curves={one.name: one for one in _curves(records)},
        data=tuple(_data_counts(sources.data)),
        examples=tuple(_examples(sources.data)),
        checks=run_checks(sources, candidate),
        gaps=sources.gaps,
        files=_files(run),
        resumed=was_resumed(sources),
        notes=(*_notes(sources), *gap_notes(memory, candidate), *_skip_notes(scales, skipped)),
        skipped_steps=skipped if scales else None,
        loss_scale=scales[-1] if scales else None,
        rows=DataFacts.read(sources.data),
        usd_per_hour=candidate.cost.usd_per_hour if candidate else None,
        seconds_in_steps=sum(numbers(records, "step_seconds")),
        last_written=run.last_written,
    )


def _notes(sources: Sources) -> Iterable[str]:
    gpu = section(section(sources.plan.hardware, "node"), "gpu") if sources.plan else None
    if gpu and text(gpu, "kind") == "cpu" and gpu.get("measured") is False:
        yield NOMINAL_TIMES
    longest, limit = whole(section(sources.data, "train"), "longest"), sources.job and sources.job.data.max_length
    if sources.plan and longest and limit and longest < limit:
        padded = padded_length(longest, max_length=limit)
        yield f"memory is forecast for rows of {padded:,} tokens: the longest has {longest:,}; max_length is {limit:,}"


def _skip_notes(scales: list[float], skipped: int) -> Iterable[str]:
    if scales:  # of float16
        many = f"{skipped:,} of {len(scales):,} steps were skipped, and count" if skipped else "none was skipped"
        yield f"steps whose gradients overflow float16: {many}; the loss scale of the last step is {scales[-1]:,.10g}"


def _without_others_memory(sources: Sources) -> Sources:
    """Drops measured.json where an earlier start with other settings wrote it."""
    ran = noted(sources.measured)
    unknown = ran.execution is None and bool(sources.starts)
    if sources.measured is None or (ran.may_be(planned(sources.plan)) and not unknown):
        return sources
    how = " and ".join(filter(None, [text(ran.execution, "strategy"), ran.hardware and f"on {ran.hardware}"]))
    reason = f"is of an earlier start with other settings{f' ({how})' if how else ''}; {LOST['measured.json']}"
    return replace(sources, measured=None, gaps=(*sources.gaps, Gap(file="measured.json", reason=reason)))


def write_report(report: Report, run: RunDirectory) -> None:
    """Writes report.json and report.html. Raises RunDirectoryError: the folder is not writable."""
    try:
        write_json(run.report_json, report.to_json())
        write_text(run.report_html, report_html(report))
    except OSError as error:
        message = f"{run.root}: the report cannot be written: {error.strerror}; free some space or check the rights"
        raise RunDirectoryError(message) from None


def _data_counts(data: dict[str, Any] | None) -> Iterable[DataCounts]:
    for split in ("train", "eval"):
        if (counted := section(data, split)) is not None:
            counts = {key: value for key in COUNTS if (value := whole(counted, key)) is not None}
            paths = tuple(path for source in sections(counted, "sources") if (path := text(source, "path")))
            yield DataCounts(split=split, counts=counts, sources=paths)


def _examples(data: dict[str, Any] | None) -> Iterable[Example]:
    for entry in sections(data, "preview")[:MAX_EXAMPLES]:
        left, shown = MAX_EXAMPLE_CHARACTERS, list[tuple[str, bool]]()
        for pair in items(entry, "text"):
            match pair:
                case [str(piece), bool(trained)] if left > 0:
                    shown.append((piece[:left], trained))
                    left -= len(piece)
                case _:
                    pass
        yield Example(where=text(entry, "where") or "", pieces=tuple(shown), cut=left < 0)


def _files(run: RunDirectory) -> tuple[FileEntry, ...]:
    paths = {run.root / name: what for name, what in FILES.items()}
    paths |= {folder: f"checkpoint of step {step}" for step, folder in run.checkpoints()}
    there = ((path, path.name + "/" * path.is_dir(), what) for path, what in paths.items() if path.exists())
    return tuple(FileEntry(name=name, num_bytes=_size(path), what=what) for path, name, what in there)


def _size(path: Path) -> int:
    """Bytes of a file, or of all regular files in a folder that are still there; without links."""
    total = 0
    for file in path.rglob("*") if path.is_dir() else (path,):
        with suppress(OSError):
            status = file.lstat()
            total += status.st_size if S_ISREG(status.st_mode) else 0
    return total


Point = tuple[int, float]


def _curves(records: Sequence[Record]) -> Iterable[Curve]:
    """Each metric where it is a finite number; running means are taken before downsampling."""
    points: dict[str, list[Point]] = {}
    for key in (*CURVES, *PREFERENCE_CURVES):
        found = [(one["step"], value) for one in records if (value := number(one, key)) is not None]
        if found or key in CURVES:
            points[key] = found
    points |= {f"{key}_smoothed": _smooth(points[key]) for key in NOISY_CURVES}
    return [Curve(name=name, points=thin(found), num_recorded=len(found)) for name, found in points.items()]


def thin(points: Sequence[Point]) -> tuple[Point, ...]:
    """At most `MAX_POINTS` points: first, last, lowest and highest of equal spans: spikes stay."""
    if len(points) <= MAX_POINTS:
        return tuple(points)
    inner, num_spans = points[1:-1], (MAX_POINTS - 2) // 2
    kept: list[Point] = [points[0]]
    for start, end in pairwise(len(inner) * index // num_spans for index in range(num_spans + 1)):
        span = inner[start:end]
        kept += sorted({min(span, key=lambda point: point[1]), max(span, key=lambda point: point[1])})
    return (*kept, points[-1])


def _smooth(points: Sequence[Point]) -> list[Point]:
    """Exponential running mean over 1/50 of the series, 5 points or more, bias-corrected (Adam)."""
    decay = 1 - 2 / (max(5, len(points) / 50) + 1)
    result, mean, weight = list[Point](), 0.0, 0.0
    for step, value in points:
        mean = decay * mean + (1 - decay) * value
        weight = decay * weight + (1 - decay)
        result.append((step, mean / weight))
    return result


def _execution_settings(execution: Execution) -> tuple[NamedSetting, ...]:
    layout = execution.layout
    axes = [f"{axis} {getattr(layout, axis)}" for axis in AXES if getattr(layout, axis) > 1]
    own = {key: value for key, value in execution.to_json().items() if key not in ("strategy", "layout")}
    named = {"strategy": layout.strategy, "layout": " × ".join(axes) or "one process", "processes": layout.world_size}
    return _settings({**named, **own})


def _job_settings(job: Job) -> tuple[NamedSetting, ...]:
    train, adapters = job.train, job.adapters
    epochs = f"{train.num_train_epochs:g} epoch" + ("" if train.num_train_epochs == 1 else "s")
    facts: dict[str, Any] = {
        "method": job.method,
        "data": ", ".join(source.path for source in job.data.path) or "none",
        "max length": f"{job.data.max_length} tokens" + (", packed" if job.data.packing else ""),
        "global batch": f"{train.global_batch_size} {job.samples} per step",
        "length": f"{train.max_steps} steps" if train.max_steps else epochs,
        "learning rate": f"{train.learning_rate:g}, {train.lr_scheduler_type}",
        "gradient clipping": f"{train.max_grad_norm:g}" if train.max_grad_norm else "none",
        "weight decay": f"{train.weight_decay:g}",
        "seed": train.seed,
    }
    if adapters:
        targets = adapters.target_modules
        facts["LoRA"] = f"r {adapters.r}, alpha {adapters.lora_alpha:g}, dropout {adapters.lora_dropout:g}"
        facts["LoRA on"] = targets if isinstance(targets, str) else ", ".join(targets)
    return _settings(facts)


def _lengths(sources: Sources) -> tuple[NamedSetting, ...]:
    """Where the run went on to another length, the steps that each length's schedule is of."""
    begun = [(whole(event, "total_steps"), whole(event, "first_step")) for event in sources.events]
    totals = [(total, first) for total, first in begun if total is not None and first is not None]
    changed = [(total, first) for (before, _), (total, first) in pairwise(totals) if total != before]
    parts = [f"of {total} steps from step {first} on" for total, first in changed]
    return _settings({"learning rate schedule": ", ".join([f"of {totals[0][0]} steps", *parts])} if changed else {})


def _scalars(data: dict[str, Any] | None) -> tuple[NamedSetting, ...]:
    """The strings and numbers of an object; nested values are left out."""
    return _settings({key: value for key, value in (data or {}).items() if isinstance(value, (str, int, float))})


def _settings(facts: dict[str, Any]) -> tuple[NamedSetting, ...]:
    found: list[NamedSetting] = []
    for name, value in facts.items():
        plain = ("no", "yes")[value] if isinstance(value, bool) else str(value)
        written = f"{value:g}" if isinstance(value, float) else plain
        short = written if len(written) <= MAX_CHARACTERS else written[:MAX_CHARACTERS] + "…"
        found.append(NamedSetting(name=name.replace("_", " "), value=short))
    return tuple(found)
