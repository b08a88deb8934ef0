"""What is done with a run or a plan: reports, merged weights, answers, other tools' files."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from shardwise.api.plans.for_target import targets_to_plan_for
from shardwise.api.plans.planning import DTYPES, plan, written_to
from shardwise.api.plans.shapes import find_model
from shardwise.catalog.engines import adapter_lines, model_lines
from shardwise.errors import InputError, RunDirectoryError, UnsupportedError
from shardwise.interop.chosen import Chosen, Exported
from shardwise.interop.targets import TARGETS
from shardwise.launch.processes.helpers import run_program
from shardwise.launch.run_folder import finished_job, known_data
from shardwise.plan import bytes_on_host, forecast_seen
from shardwise.report.collect import collect, write_report
from shardwise.report.contents import Gap, Report
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.file import job_from_data, read_job
from shardwise.spec.plan.file import read_plan
from shardwise.spec.plan.forecast import Plan, SeenMemory
from shardwise.spec.request import Override, is_plan, restricted_to
from shardwise.spec.result import ADAPTER_CONFIG, BASE_KEYS, CARD, naming_a_folder, put_by_a_person
from shardwise.spec.run import RunDirectory, read_json, revision_of, write_text


def merge(
    run_dir: str | Path,
    *,
    output: str | Path | None = None,
    dtype: str | None = None,
    dequantised: bool = False,
    base_model: str | None = None,
) -> dict[str, Any]:
    """Merges a run's adapter into its base model, and compares the logits of both. What a person
    put into an earlier merge in that folder is kept. `dtype`: of the weights; None for the base
    model's own; `dequantised`: of QLoRA, merge into the base as training computed with it, and not
    as it lies in its folder; `base_model`: its folder or hub id, where it is not found as the job
    named it.

    Returns what was done, with the largest `difference` of a logit from what was trained, and that
    before weights were rounded, on one base (`exact_difference`; where float32 rounds much, in
    float64 too: `float64_difference`). Raises InputError: it cannot be done with this run or
    folder; DamagedResultError: a file of final/ is missing or changed; ReportedError: it failed,
    and has said why on stderr.
    """
    run = RunDirectory(Path(run_dir))
    target, job = Path(output or run.merged), finished_job(run)
    if job.adapters is None:
        raise UnsupportedError(f"{run.root} was trained in full: it has no adapter to merge, {run.final} is the model")
    if dequantised and job.method != "qlora":
        raise UnsupportedError(f"--dequantised is for QLoRA, and {run.root} was trained by {job.method}; leave it out")
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"--dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    if target.exists() and "merged" not in _read(target):
        raise RunDirectoryError(f"{target} exists and is no merged model; name a new folder by --output")
    touched = [name for name in put_by_a_person(target) if name == "config.json" or ".safetensors" in name]
    if touched:
        raise RunDirectoryError(
            f"{target / touched[0]} is not what the last merge wrote, and another would replace it; name a new folder "
            "by --output, or remove it"
        )
    asked: dict[str, Any] = {"run_dir": str(run.root), "target": str(target), "dtype": dtype}
    asked |= {"dequantised": dequantised, "base_model": base_model}
    return json.loads(run_program("shardwise.programs.merge", asked, capture=True))


#: Bytes of a command line that are no UTF-8 text, as Python reads them.
_NO_TEXT = re.compile(r"[\ud800-\udfff]")


class Sampling(TypedDict, total=False):
    """How tokens of an answer are drawn: at temperature 0 the likeliest; 256 at most by default."""

    max_new_tokens: int
    temperature: float
    top_p: float | None
    seed: int | None


def chat(
    run_dir: str | Path,
    *,
    part: Literal["trained", "base", "merged"] = "trained",
    prompt: str | None = None,
    system: str | None = None,
    as_json: bool = False,
    base_model: str | None = None,
    **draws: Unpack[Sampling],
) -> None:
    """Answers on stdout a prompt, or each line of stdin; errors as of `merge`."""
    drawn: Sampling = {"max_new_tokens": 256, "temperature": 0.0, **draws}
    run = RunDirectory(Path(run_dir))
    finished_job(run)
    if prompt is not None and not prompt.strip():
        raise InputError("the prompt is empty; write a question, or leave --prompt out to ask line by line")
    for flag, text in (("--prompt", prompt), ("--system", system)):
        if text is not None and _NO_TEXT.search(text):
            raise InputError(f"{flag} is not UTF-8 text; write it as UTF-8")
    if drawn.get("top_p") is not None and not drawn.get("temperature"):
        raise InputError("--top-p is set, which has no effect at --temperature 0; write a higher one, or leave it out")
    if part == "merged" and not run.merged.is_dir():
        raise RunDirectoryError(f"{run.merged} does not exist; `shardwise merge {run.typed}` writes it")
    if part == "merged" and _read(run.merged).get("adapter") != read_json(run.final / "manifest.json"):
        message = f"{run.merged} holds another adapter than {run.final}, which was trained on since"
        raise RunDirectoryError(f"{message}; run `shardwise merge {run.typed}` again")
    asked = {"run_dir": str(run.root), "part": part, "prompt": prompt, "system": system}
    asked |= {"as_json": as_json, "base_model": base_model, **drawn}
    run_program("shardwise.programs.chat", asked)


def usage(run: RunDirectory) -> list[str]:
    """How a finished run's result is used elsewhere, and what to look at before it is published."""
    job, config, final = read_job(run.resolved), read_json(run.final / ADAPTER_CONFIG), str(run.final)
    stops: list[str] = _read(run.final).get("stops") or []
    model: dict[str, Any] = (read_json(run.plan) or {}).get("model") or {}
    if config is None:
        return [*model_lines(final, dtype=job.train.save_dtype, stops=stops), *publishing(run.final)]
    base = Path(job.model)
    folder = str(base.parent if base.is_file() else base)
    lines = adapter_lines(
        config,
        final=final,
        base=folder if ADAPTER_CONFIG in naming_a_folder(run.final) else config[BASE_KEYS[0]],
        merge=f"shardwise merge {run.typed}",
        dtype=model.get("storage_dtype"),
        stops=stops,
    )
    return [*lines, *publishing(run.final)]


def publishing(folder: Path) -> list[str]:
    """The command that uploads a result, and what to look at before."""
    todo = [f"{name} names the base by a folder; put its hub id there" for name in naming_a_folder(folder)]
    todo += [f"{CARD} states no license; choose one", "may the data be published? A model can be made to recite it"]
    upload = f"  hf upload my-name/my-model {shlex.quote(str(folder))}"
    return [upload, "before publishing:", *(f"  {line}" for line in todo)]


def _read(folder: Path) -> dict[str, Any]:
    """The manifest of a merged model; empty where there is none."""
    return read_json(folder / "manifest.json") or {}


def export(job: str | Path, *, to: str, overrides: Sequence[str | Override] = ()) -> Exported:
    """What a target, named as in `TARGETS`, needs to run a plan. `job`: a plan.json, or a job file,
    which is planned first with its `overrides`, for the target where its memory is known. Raises
    InputError: there is no such target, or the job cannot be planned; UnsupportedError: the target
    would train something else; every reason is named."""
    if to not in TARGETS:
        raise InputError(f"--to {to}: there is no such target; write one of {', '.join(TARGETS)}")
    if not is_plan(job):
        try:
            chosen = plan(job, overrides=overrides, target=to if to in targets_to_plan_for() else None)
        except UnsupportedError as error:
            told = [replace(one, where=str(job)) if one.where == "--for" else one for one in error.problems]
            raise UnsupportedError(told) from None
    elif overrides:
        raise InputError("--set changes a job, and this is a plan; set it in `shardwise plan`, or export the job file")
    else:
        chosen = read_plan(job)
    return export_plan(chosen, to=to, path=str(job), sets=[Override.of(one).text for one in overrides])


def export_plan(chosen: Plan, *, to: str, path: str, sets: Sequence[str] = ()) -> Exported:
    """Likewise, of a plan that is made; `path`: the file that it, or its job, is saved as; `sets`:
    what `--set` said of the job."""
    if chosen.best is not None and chosen.best.not_trained and to in ("torchrun", "slurm", "kubernetes", "skypilot"):
        raise UnsupportedError(f"{path}: {'; '.join(chosen.best.not_trained)}")
    try:
        known = replace(Chosen.of(chosen, path=path), host_bytes=bytes_on_host(chosen), sets=tuple(sets))
    except (KeyError, TypeError, ValueError):
        message = "its `model` or `hardware` is not as a plan has it; write it anew with `shardwise plan --output`"
        raise InputError(f"{path}: {message}") from None
    return TARGETS[to].write(known)


def write_export(exported: Exported, folder: str | Path) -> list[Path]:
    """Writes the files into a folder; InputError if they cannot be written. Returns their paths."""
    paths = [Path(folder) / name for name in exported.files]
    with written_to(folder, what="folder"):
        for path, text in zip(paths, exported.files.values(), strict=True):
            write_text(path, text)
    return paths


def report(run_dir: str | Path) -> Report:
    """Forecast beside measurement of a run; writes report.json and report.html, and a gap says
    where they cannot be written."""
    run = RunDirectory(Path(run_dir))
    collected = collect(run, seen=memory_seen(run))
    try:
        write_report(collected, run)
    except RunDirectoryError as error:
        return replace(collected, gaps=(*collected.gaps, Gap(file=run.report_html.name, reason=str(error))))
    return collected


def memory_seen(run: RunDirectory) -> SeenMemory | None:
    """The forecast for the longest rows of the steps that were measured; None: not known."""
    measured, counted = read_json(run.measured) or {}, known_data(run)[1]
    try:
        first, later = map(int, measured.get("rows_seen") or ())
        trained = tuple(map(int, measured.get("trained_seen") or ()))
        plan = read_plan(run.plan)
        if plan.best is None or first < 1:
            return None
        execution = plan.best.execution
        job = job_from_data(restricted_to(plan.job, execution))
        model = find_model(job.model, offline=True, revision=revision_of(run, job.model), rope=job.rope_scaling)
        return forecast_seen(
            job,
            model=model,
            cluster=Cluster.from_json(plan.hardware).part(execution.layout.world_size),
            execution=execution,
            first=first,
            later=later,
            document=counted and counted.document,
            trained=(trained[0], trained[1]) if any(trained) else None,
        )
    except (InputError, KeyError, TypeError, ValueError, IndexError):  # files are no longer there, or were edited
        return None
