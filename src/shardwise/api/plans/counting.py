"""`data`: what training will see of a job's rows; and what a plan knows of them without a look."""

import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from shardwise.api.plans.shapes import read_request
from shardwise.catalog.hub import is_hub_id
from shardwise.catalog.noted_data import noted_data
from shardwise.launch.processes.command import require_torch
from shardwise.launch.processes.helpers import ReportedError, prepare_data, sample_rows
from shardwise.plan import run_of
from shardwise.spec.data_facts import DataFacts, Known
from shardwise.spec.job.keys import Job
from shardwise.spec.job.places import write_places
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.request import Override, Request
from shardwise.spec.run import RunDirectory, write_json


@dataclass(frozen=True, kw_only=True)
class CountedData:
    """What training will see. `refusal`: where it will not: what is wrong has been printed."""

    facts: DataFacts
    refusal: ReportedError | None = None


def data(job: Job | str | Path, *, overrides: Sequence[str | Override] = ()) -> CountedData:
    """Prepares a job's data as `train` does, which then finds it prepared, and says what was
    counted; what was prepared before is not read again while paths, sizes and times of change are
    the same. Raises InputError: the job cannot be read; ReportedError: no row could be counted, and
    why was printed; StoppedError."""
    request = read_request(job, overrides=overrides)
    noted = noted_data(request.job)
    if noted is not None and noted.folder is not None and noted.folder.is_dir():
        return CountedData(facts=noted.facts)
    require_torch()
    refusal: ReportedError | None = None
    with _run_of_its_own(request) as run:
        try:
            prepare_data(run, brief=True)
        except ReportedError as error:
            refusal = error
    noted = noted_data(request.job)
    if noted is None:
        raise refusal or ReportedError("what was counted cannot be kept", exit_code=1)
    return CountedData(facts=noted.facts, refusal=refusal)


@dataclass(frozen=True, kw_only=True)
class KnownData:
    """What a plan knows of a job's rows. `known`: how many, as the job states, or as counted."""

    job: Job
    known: Known
    facts: DataFacts | None
    notes: tuple[str, ...]

    @classmethod
    def of(cls, request: Request, *, samples_rows: bool = False) -> Self:
        """What was counted before; `samples_rows`: else some of the rows are read."""
        noted, stated, why = noted_data(request.job), request.job.data.num_rows, None
        paths = [Path(source.path) for source in request.job.data.path]
        if noted is None and samples_rows and not stated and paths and all(path.exists() for path in paths):
            with _run_of_its_own(request) as run:
                why = sample_rows(run.root)
            noted = noted_data(request.job)
        facts = None if noted is None else noted.facts
        samples, lengths = (None, None) if facts is None else facts.train.known
        if facts is not None and facts.sampled is not None and lengths is not None:
            # The longest row is hardly among some: memory is for rows as long as they may be.
            lengths = replace(lengths, longest=request.job.data.max_length)
        notes = (*_notes(request, facts), *([f"rows are not counted: {why}"] if why else []))
        return cls(job=request.job, known=(stated or samples, lengths), facts=facts, notes=notes)

    def shown_in(self, made: Plan) -> Plan:
        """A plan that says so."""
        counted = "counted" if self.facts is None or self.facts.sampled is None else "sampled"
        source = "stated" if self.job.data.num_rows else counted
        run = run_of(self.job, made.best, num_rows=self.known[0], rows_from=source)
        if made.offers and made.offers.start_up:
            run = replace(run, sentence=f"{run.sentence}, beside its start")
        said = () if run.num_steps is None else filter(None, self._of_steps(run.num_steps))
        return replace(made, data=self.facts, data_notes=(*self.notes, *said), run=run)

    def _of_steps(self, steps: int) -> Iterator[str | None]:
        train, part = self.job.train, self.facts and self.facts.eval
        yield train.warning_of_warmup(steps)
        if train.eval_steps:
            rows = f" over {part.num_samples:,} rows" if part and part.num_samples else ""
            yield f"time and cost leave out evaluation: {-(-steps // train.eval_steps):,} x{rows} (train.eval_steps)"


@contextmanager
def _run_of_its_own(request: Request) -> Generator[RunDirectory]:
    with tempfile.TemporaryDirectory(prefix="shardwise-rows-") as folder:
        run = RunDirectory(Path(folder))
        write_json(run.resolved, request.job.to_json())
        write_places(run, request.written.by_key)
        yield run


def _notes(request: Request, facts: DataFacts | None) -> Iterator[str]:
    stated, counted = request.job.data.num_rows, facts and facts.train.known[0]
    if stated and request.job.data.path and stated != counted:
        yield f"planned for {stated:,} rows, as data.num_rows says; `train` takes those of data.path"
    for key in ("path", "eval_path"):
        for index, source in enumerate(getattr(request.job.data, key)):
            path = Path(source.path)
            if not path.exists() and (path.suffix[1:].isalpha() or not is_hub_id(source.path)):
                where = request.where("data", key, index)
                yield f"{where}: {source.path}: there is no such file or folder; it is planned without its rows"
    if facts is not None and facts.lengths is not None and facts.lengths.num_over and facts.over_long == "error":
        over, most = facts.lengths.num_over, facts.lengths.max_length
        yield f"{over:,} rows are longer than max_length ({most:,}), which `train` refuses as over_long: error"
