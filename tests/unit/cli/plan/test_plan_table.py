"""A plan and its timeline on a terminal."""

import html
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from shardwise.cli.plan_table import print_plan, what_next, why
from shardwise.cli.timeline_text import heading, legend, timeline_lines
from shardwise.report.pages.plan_page import plan_html
from shardwise.spec.data_facts import DataFacts, PartFacts
from shardwise.spec.layout.axes import Layout
from shardwise.spec.plan.forecast import Plan, Rejection, Sentence
from shardwise.spec.plan.timeline import Kind, Lane, Stream, Timeline, TimelineSpan
from tests.unit.cli.plans import nothing_fits, plan


def drawn(made: Plan, *, width: int, terminal: bool = False, verbose: bool = False) -> str:
    file = io.StringIO()
    colours = "truecolor" if terminal else None
    console = Console(file=file, width=width, force_terminal=terminal, color_system=colours, highlight=False)
    print_plan(made, console, verbose=verbose)
    return file.getvalue()


EXPECTED = """\
m (8.03B parameters, 42M trained), lora, on 4x RTX-6000-Ada: 32 sequences of at most 1024 tokens a step, lr 0.0002

fits: fsdp (dp_shard=4), 2 h 00 min and $12.50 for the run, 30.0 GiB (at most 31.0 GiB) of 48.0 GiB; 1.50 s a step, 21k
tokens/s, MFU 40 %
  - it is the fastest of 2 that fit
  - 1 more with --verbose

    strategy  layout          batch        peak  memory of one GPU                 step  tokens/s   MFU    cost
->  fsdp      dp_shard=4        4x2    30.0 GiB  [WWWGOOOOOOAAAAL.........]      1.50 s       21k  40 %  $12.50
    ddp       dp_replicate=4    4x2  60.0 GiB !  [WWWWWWGGGOOOOOOOOOOOOAAA]AAAL  1.50 s       21k  40 %  $12.50
W weights  G gradients  O optimizer  A activations  L logits  . free  ! too much  batch: micro-batch x accumulation
MFU: share of the peak FLOP/s

not chosen (--verbose lists every reason):
  not possible: tp (tp is not trained by this version)

next: name your data in a job file and run `shardwise train JOB`; --html plan.html draws this plan
"""


def test_the_screen_as_a_whole_and_on_a_narrow_terminal() -> None:
    assert drawn(plan(), width=120) == EXPECTED
    lines = drawn(plan(), width=80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("->  fsdp") and line.rstrip().endswith("40 %") for line in lines)
    assert "\x1b[" in drawn(plan(), width=120, terminal=True), "a terminal gets colours"


def test_notes_of_the_hardware_and_packed_rows_are_said() -> None:
    made = plan()
    noted = replace(made, hardware={**made.hardware, "notes": ["GPU 0: 50.0 GiB are held by <python> (pid 1)"]})
    assert drawn(noted, width=120).splitlines()[1] == "  ! GPU 0: 50.0 GiB are held by <python> (pid 1)"
    assert "50.0 GiB are held by &lt;python&gt; (pid 1)" in plan_html(noted, None)
    made = plan()
    packed = replace(made, job={**made.job, "data": {**made.job["data"], "packing": True}})
    assert why(packed)[-1] == f"{why(made)[-1]}; each row counts as one sequence, and packing makes fewer"
    counted = replace(packed, data=DataFacts(train=PartFacts(num_samples=5)))
    assert why(counted)[-1] == why(made)[-1], "packed sequences were counted"


def test_offload_and_recompute_have_columns_where_a_candidate_uses_them() -> None:
    made = plan()
    used = replace(made.candidates[0].execution, offload="parameters", gradient_checkpointing="full")
    first = replace(made.candidates[0], execution=used)
    text = drawn(replace(made, candidates=(first, *made.candidates[1:])), width=150)
    assert "fits: fsdp (dp_shard=4) with offload parameters, " in text
    heads, *rows = (line for line in text.splitlines() if line.startswith(("    ", "->")) and "[" not in line[:30])
    assert "batch  recompute  offload " in heads
    assert rows[0].split()[4:6] == ["full", "parameters"]
    shown = drawn(replace(made, candidates=(first, *made.candidates[1:])), width=80)
    assert " offload " in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "offload" not in drawn(made, width=150)


def many_rejected() -> Plan:
    made = plan()
    slower = "12 % slower (1.71 s against 1.50 s a step): for 11 % of the time a GPU waits for other stages"
    best, pairs = made.candidates[0], [Layout(pp=2, dp_shard=n) for n in range(2, 12)]
    fitting = [replace(best, execution=replace(best.execution, layout=one)) for one in pairs]
    reasons = {
        **dict.fromkeys(pairs, slower),
        Layout.from_strategy("zero2", world_size=2): Sentence("2 % faster, and ...", short="2 % faster, not as simple"),
        Layout(dp_replicate=4): Sentence("needs 60.0 GiB, at most 61.0 GiB of ...", short="up to 61.0 GiB"),
    }
    rejected = [Rejection(strategy=one.strategy, layout=one, reason=reason) for one, reason in reasons.items()]
    return replace(made, candidates=(*made.candidates, *fitting), rejected=(*rejected, *made.rejected))


def test_what_is_not_chosen_takes_three_lines_and_no_reason_is_cut_in_a_number() -> None:
    text = drawn(many_rejected(), width=100).split("not chosen (--verbose lists every reason):\n")[1].split("\n\n")[0]
    fits, large, impossible = text.splitlines()
    assert fits == "  fits too: fsdp x pp (12 % slower)"
    assert large == "  too large: ddp (up to 61.0 GiB)"
    assert impossible == "  not possible: zero2 (2 % faster, not as simple), tp (tp is not trained by this version)"
    assert "  not possible: zero2 (2 % faster, not as simple), 1 more\n" in drawn(many_rejected(), width=60)
    made = plan()
    reason = "cp = 2 would leave a rank less than 4,096 tokens of a row, which no GPU wants"
    one = Rejection(strategy="cp", layout=Layout(cp=2), reason=reason)
    text = drawn(replace(made, rejected=(one,)), width=150)
    assert "cp (cp = 2 would leave a rank less than 4,096 tokens of a row)" in text
    made = plan()
    other = Rejection(strategy="cp", layout=Layout(cp=4), reason=made.rejected[0].reason)
    text = drawn(replace(made, rejected=(*made.rejected, other)), width=130, verbose=True)
    assert "\nnot chosen:\n  tp (tp=4), cp (cp=4): tp is not trained by this version\n" in text
    assert drawn(many_rejected(), width=200, verbose=True).count("12 % slower (1.71 s against 1.50 s a step)") == 1


def test_the_verdict_and_the_next_command_are_what_would_run() -> None:
    text = drawn(nothing_fits(), width=120)
    assert "\nnothing fits on 4x RTX-6000-Ada\n" in text
    assert text.endswith("next: take a smaller model, or let the hardware be chosen: --hardware any\n")
    made = plan()
    uncounted = replace(made, job={**made.job, "data": {**made.job["data"], "path": [{"path": "chats.jsonl"}]}})
    assert what_next(uncounted).startswith("next: `shardwise data` with the same job counts its rows, `shardwise ")
    counted = replace(uncounted, data=DataFacts(train=PartFacts()))
    assert what_next(counted).startswith("next: `shardwise train` with the same job runs it")
    best = replace(made.candidates[0], not_trained=("cp is not trained",))
    untrained = replace(made, candidates=(best, *made.candidates[1:]))
    assert "shardwise train" not in what_next(untrained)
    assert "forecast only: fsdp (dp_shard=4), 2 h 00 min and $12.50 for the run, " in drawn(untrained, width=200)
    assert "MFU 40 %\n  - PLANNED, NOT TRAINED: cp is not trained" in drawn(untrained, width=200)


def span(rank: int, kind: Kind, start: float, end: float, stream: Stream = "compute") -> TimelineSpan:
    return TimelineSpan(rank=rank, stream=stream, kind=kind, name=kind, start=start, end=end)


def staircase() -> Timeline:
    order = ((0, "forward"), (1, "forward"), (1, "backward"), (0, "backward"))
    spans = tuple(span(rank, kind, 10 * at, 10 * at + 10) for at, (rank, kind) in enumerate(order))
    lanes = (Lane(ranks=(0,), computing=0.5), Lane(ranks=(1, 2), computing=0.75))
    return Timeline(strategy="mp", seconds=40, micro_batches=3, drawn_micro_batches=1, lanes=lanes, spans=spans)


def test_model_parallel_is_seen_as_a_staircase() -> None:
    lines = [line.plain for line in timeline_lines(staircase(), width=53)]
    first, second = "F" * 10 + "." * 19 + "B" * 10, "." * 10 + "F" * 10 + "B" * 9 + "." * 10
    assert lines == [f"GPU 0   {first}  50 %", f"GPU 1-2 {second}  75 %"]
    assert heading(staircase()) == "one step of mp, 1 of its 3 micro-batches: 40 s from left to right"
    assert legend(staircase()).startswith("F forward  B backward  . waits for others")


def test_the_shares_beside_a_part_of_a_step_are_those_of_the_whole(shardwise, tmp_path) -> None:
    """A pipeline of 64 micro-batches waits far less than 8 of them would."""
    asked = ("plan", "--model", "tinyllama-1.1b", "--method", "lora", "--hardware", "4x RTX-6000-Ada")
    sets = ("layout={pp: 4, schedule: gpipe}", "train.global_batch_size=64", "train.micro_batch_size=1")
    asked = (*asked, *(word for one in sets for word in ("--set", one)))
    page = tmp_path / "plan.html"
    assert "one step of" not in shardwise(*asked, "--html", page).out
    said = shardwise(*asked, "--timeline").out
    assert "one step of pp, 8 of its 64 micro-batches: " in said
    assert "%: share of the whole step in which it computes" in " ".join(said.split())
    shares = [float(line.split()[-2]) for line in said.splitlines() if line.startswith("GPU ") and line.endswith(" %")]
    whole = json.loads(shardwise(*asked, "--json").out)["candidates"][0]["time"]["compute_utilization"]
    assert len(shares) == 4
    assert sum(shares) / 4 == pytest.approx(100 * whole, abs=0.5)
    source = page.read_text()
    assert "<h1>pp fits on 4x RTX-6000-Ada</h1>" in source
    assert "8 of the step's 64 micro-batches as forecast" in html.unescape(source)
    assert f">{shares[0]:.0f} % of the step<" in source
    assert "cannot be written" in shardwise.refused(*asked, "--html", page / "plan.html")
