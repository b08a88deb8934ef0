"""The plan as one self-contained page: what was chosen and why, memory and time of every candidate, one step drawn."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.report.markup import Markup, element
from shardwise.report.page import legend_of, page
from shardwise.report.plan_answers import answers
from shardwise.report.plan_charts import memory_bars, worst_rank
from shardwise.report.timeline_chart import timeline_panel
from shardwise.spec.plan import PARTS, Candidate, Cost, Plan
from shardwise.spec.timeline import Timeline
from shardwise.units import format_bytes, format_count, format_seconds

WIDTH = 940
MOST_CANDIDATES = 16
FOOT = (
    "Forecasts: memory is that of the GPU that needs most, times use the catalogue's rates or this machine's measured "
    "ones; utilisation is the share of time in which any kernel runs, collectives included."
)
COLUMNS = (
    "Strategy",
    "Layout",
    "Batch",
    "Recompute",
    "Offload",
    "Peak memory",
    "Step",
    "Tokens/s",
    "GPU busy",
    "Computing",
    "MFU",
    "Cost",
)
_WORDS = 5  # columns that hold words; the others hold figures


def plan_html(plan: Plan, timeline: Timeline | None) -> str:
    """The whole page."""
    name = str(plan.job.get("model", "model"))
    return page(
        _header(plan, name),
        answers(plan),
        _cards(plan),
        _memory(plan),
        _table(plan),
        _timeline(timeline),
        _reasons(plan),
        _rejected(plan),
        title=f"{name} – Shardwise plan",
        foot=FOOT,
    )


def shown(plan: Plan) -> list[tuple[str, Candidate]]:
    """The candidates of the page, the chosen one among them, each with a name that tells it from the others."""
    numbered = [(i, c) for i, c in enumerate(plan.candidates) if i < MOST_CANDIDATES or i == plan.chosen]
    return [(_name(candidate, chosen=index == plan.chosen), candidate) for index, candidate in numbered]


def _name(candidate: Candidate, *, chosen: bool) -> str:
    execution = candidate.execution
    sizes = f"{execution.micro_batch_size}x{execution.gradient_accumulation_steps}"
    recompute = "" if execution.gradient_checkpointing == "none" else f" {execution.gradient_checkpointing}"
    offload = "" if execution.offload == "none" else f", offload {execution.offload}"
    return f"{'→ ' if chosen else ''}{execution.layout.strategy} {sizes}{recompute}{offload}"


def _header(plan: Plan, name: str) -> Markup:
    hardware = str(plan.hardware.get("name", "this machine"))
    trained = plan.model.get("num_trainable_parameters")
    share = f", {format_count(trained)} of them trained" if isinstance(trained, int) else ""
    facts = (
        f"{plan.job.get('method')} · {format_count(plan.model['num_parameters'])} parameters{share} · "
        f"{plan.job['train']['global_batch_size']} sequences of at most {plan.job['data']['max_length']} tokens a step"
    )
    chosen = "Nothing fits" if plan.best is None else f"{plan.best.execution.layout.strategy} fits"
    planned = plan.best is not None and plan.best.not_trained
    badge = [element("span", "planned, not trained by this version", class_="badge stopped")] if planned else []
    return element(
        "header",
        element("p", f"Shardwise plan · {name}", class_="eyebrow"),
        element("h1", f"{chosen} on {hardware}"),
        element("p", facts, class_="facts"),
        *(element("p", one, class_="outcome") for one in (*plan.notes, *badge)),
    )


def _cards(plan: Plan) -> Markup:
    if plan.best is None:
        return Markup("")
    best, time = plan.best, plan.best.time
    total = "not known" if time.total_seconds is None else format_seconds(time.total_seconds)
    cards = (
        ("step", format_seconds(time.step_seconds), f"{format_count(time.tokens_per_second)} tokens/s"),
        ("GPU busy", _percent(time.gpu_utilization), f"computing {_percent(time.compute_utilization)}"),
        (
            "peak memory",
            format_bytes(best.memory.peak_bytes),
            f"at most {format_bytes(best.memory.peak_high_bytes)} of {format_bytes(best.memory.capacity_bytes)}",
        ),
        ("whole run", total, f"cost {_cost(best.cost)}"),
    )
    return element("div", *(_card(*card) for card in cards), class_="cards")


def _card(label: str, value: str, under: str) -> Markup:
    parts = (("label", label), ("value", value), ("under", under))
    return element("div", *(element("div", text, class_=look) for look, text in parts), class_="card")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _cost(cost: Cost) -> str:
    if cost.usd is not None:
        return f"${cost.usd:,.2f}"
    return "not known" if cost.usd_per_hour is None else f"${cost.usd_per_hour:,.2f}/h"


def _memory(plan: Plan) -> Markup:
    candidates = shown(plan)
    if not candidates:
        return Markup("")
    used = [part for part in PARTS if any(worst_rank(c).parts.get(part) for _, c in candidates)]
    legend = legend_of([(f"part {part}", part) for part in used])
    drawn = memory_bars(candidates, ident="memory", width=WIDTH)
    return _panel("Memory of one GPU", legend, drawn)


def _panel(heading: str, legend: Markup, *content: Markup) -> Markup:
    return element("section", element("div", element("h2", heading), legend, class_="titled"), *content, class_="panel")


def _table(plan: Plan) -> Markup:
    if not plan.candidates:
        return Markup("")
    candidates = [candidate for _, candidate in shown(plan)]
    offloaded = any(candidate.execution.offload != "none" for candidate in candidates)
    looks = [None] * _WORDS + ["number"] * (len(COLUMNS) - _WORDS)
    names = [one for one in zip(COLUMNS, looks, strict=True) if offloaded or one[0] != "Offload"]
    head = element("thead", element("tr", *(element("th", name, scope="col", class_=look) for name, look in names)))
    rows = (_row(one, chosen=one is plan.best, offloaded=offloaded) for one in candidates)
    body = element("tbody", *rows)
    return element(
        "section",
        element("h2", "Candidates"),
        element("div", element("table", head, body), class_="scroll"),
        element("p", "Batch: micro-batch × accumulation, for each data-parallel rank.", class_="note"),
        class_="panel candidates",
    )


def _row(candidate: Candidate, *, chosen: bool, offloaded: bool) -> Markup:
    execution, time = candidate.execution, candidate.time
    words = (
        execution.layout.written,
        f"{execution.micro_batch_size} × {execution.gradient_accumulation_steps}",
        execution.gradient_checkpointing,
        *([execution.offload] if offloaded else []),
    )
    figures = (
        format_bytes(candidate.memory.peak_bytes) + ("" if candidate.fits else " !"),
        format_seconds(time.step_seconds),
        format_count(time.tokens_per_second),
        _percent(time.gpu_utilization),
        _percent(time.compute_utilization),
        _percent(time.mfu),
        _cost(candidate.cost),
    )
    badge = [element("span", "chosen", class_="badge finished")] if chosen else []
    missing = [] if candidate.fits else [element("span", "does not fit", class_="badge failed")]
    return element(
        "tr",
        element("th", element("code", execution.layout.strategy), " ", *badge, *missing, scope="row"),
        *(element("td", text) for text in words),
        *(element("td", text, class_="number") for text in figures),
    )


def _timeline(timeline: Timeline | None) -> Markup:
    if timeline is None:
        return Markup("")
    return timeline_panel(f"One step of {timeline.strategy}", timeline, ident="timeline", width=WIDTH)


def _reasons(plan: Plan) -> Markup:
    if plan.best is None:
        return _list("What would fit", plan.advice, look="notice")
    return _list(f"Why {plan.best.execution.layout.strategy}", plan.best.reasons, look="panel")


def _rejected(plan: Plan) -> Markup:
    sentences = list(dict.fromkeys(f"{one.strategy}: {one.reason}" for one in plan.rejected))
    return _list("Not chosen, and why", sentences, look="panel")


def _list(heading: str, sentences: Sequence[str], *, look: str) -> Markup:
    if not sentences:
        return Markup("")
    lines = element("ul", *(element("li", sentence) for sentence in sentences), class_="reasons")
    return element("section", element("h2", heading), lines, class_=look)
