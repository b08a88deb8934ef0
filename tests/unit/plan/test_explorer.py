"""Pruning loses nothing: bounds lie below every forecast, and the pruned search finds what an exhaustive one finds."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan import products as products_of
from shardwise.plan.bounds import Bounds
from shardwise.plan.choices import bases, micro_batch_sizes, sized
from shardwise.plan.explorer import Explorer
from shardwise.plan.frontier import Frontier
from shardwise.plan.groups import Group
from shardwise.plan.look import Look
from shardwise.plan.paces import Pace
from shardwise.plan.products import Choice, layouts, products
from shardwise.plan.question import ask, work_on
from shardwise.plan.ranking import figures_of
from shardwise.plan.search import answer
from shardwise.plan.shares import parts
from shardwise.spec.job_file import parse_job
from shardwise.spec.layout import Layout
from tests.marks import every_second
from tests.unit.plan.asking import job, shape


@pytest.fixture
def all_trained(monkeypatch):
    """As if the trainer accepted every layout, so that the search has all of them to look at."""
    monkeypatch.setattr(products_of, "open_refusal", lambda *, method, layout, model: None)


def question(seed):
    """A small job, every part of it drawn."""
    draw = random.Random(seed)
    pick = draw.choice
    model = shape(
        num_hidden_layers=pick([2, 3, 6]), hidden_size=pick([64, 128]), tie_word_embeddings=pick([True, False])
    )
    asked = job(
        method=pick(["full", "lora"]),
        goal=pick(["fastest", "cheapest", "fewest-gpus"]),
        data={"max_length": pick([64, 200, 1024])},
        train={"global_batch_size": pick([1, 3, 6]), "precision": pick(["mixed", "bf16", "fp32"])},
    )
    cluster = parse_hardware(pick(["1x L4", "2x L4", "3x H100-SXM", "2 x 2x A100-80GB"]))
    return ask(asked, model=model, cluster=_with_memory(cluster, draw.uniform(1.1, 3.0)))


def _with_memory(cluster, gib):
    gpu = replace(cluster.gpu, memory_bytes=int(gib * 2**30), reserved_bytes=0)
    return replace(cluster, node=replace(cluster.node, gpu=gpu))


@pytest.mark.parametrize("seed", range(6))
def test_the_pruned_search_chooses_what_the_exhaustive_one_chooses(all_trained, seed):
    asked = question(seed)
    pruned, exhaustive = answer(asked), answer(asked, prune=False)
    assert pruned.best == exhaustive.best
    assert pruned.advice == exhaustive.advice
    if pruned.best is None:
        assert {c.execution.layout.strategy for c in pruned.candidates} == {
            c.execution.layout.strategy for c in exhaustive.candidates
        }


@pytest.mark.parametrize("seed", every_second(range(8)))
@pytest.mark.parametrize(
    "hardware",
    ["3 x 2x H100-SXM", "5 x 1x L4", "6x A100-80GB", pytest.param("18 x 1x H100-SXM", marks=pytest.mark.slow)],
)
def test_the_cheapest_part_of_a_cluster_is_what_looking_at_all_parts_finds(all_trained, hardware, seed):
    """Smaller parts wait unopened as long as a bound says that nothing on them could be chosen."""
    small = question(seed)
    asked = replace(
        small,
        job=small.job.model_copy(update={"goal": "cheapest"}),
        cluster=_with_memory(parse_hardware(hardware), random.Random(seed).uniform(0.7, 2.0)),
    )
    pruned, exhaustive = answer(asked), answer(asked, prune=False)
    assert pruned.best == exhaustive.best
    assert {c.execution.layout.strategy for c in pruned.candidates} == {
        c.execution.layout.strategy for c in exhaustive.candidates
    }


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_no_layout_of_a_family_is_faster_than_the_family_could_be(seed):
    """Of GPUs that hold anything, so that every family is of interest."""
    small = question(seed)
    asked = replace(small, cluster=_with_memory(small.cluster, 1e6))
    draw, explorer = random.Random(seed), Explorer(asked)
    frontier = Frontier(asked, explorer.bounds, [asked.cluster])
    for name in draw.sample(sorted(frontier.strategies), min(6, len(frontier.strategies))):
        spreads = frontier.of(name)
        taken = explorer.opener.of_interest(spreads, strategy=name, enough=None)
        for number, spread in enumerate(spreads):
            for group in explorer.opener.opened(spread.family(asked.cluster), name):
                rung = draw.choice(group.ladder)
                work = work_on(asked, group.cluster, sized(group.base, asked.job, asked.model, rung.size))
                layout, seconds = group.base.layout, explorer.time(work).step_seconds
                figures = figures_of(asked.job.goal, seconds=seconds, num_gpus=layout.world_size, gpu=asked.cluster.gpu)
                assert taken[number, 0].least <= figures


@pytest.mark.parametrize("seed", range(8))
def test_families_that_are_passed_over_hold_nothing_that_fits_and_is_of_interest(all_trained, seed):
    """What is fast enough and what fits are bounded together, over all numbers of nodes."""
    draw, small = random.Random(seed), question(seed)
    asked = replace(
        small,
        job=small.job.model_copy(update={"goal": "cheapest"}),
        cluster=_with_memory(parse_hardware("4 x 2x H100-SXM"), draw.uniform(0.7, 1.8)),
    )
    pruned, every = Explorer(asked), Explorer(asked, prune=False)
    frontier = Frontier(asked, pruned.bounds, list(parts(asked.job, asked.cluster))[:-1])
    for name in draw.sample(sorted(frontier.strategies), 8):
        spreads = frontier.of(name)
        families = every.opener.of_interest(spreads, strategy=name, enough=None)
        groups = [(number, group) for number, one in families.items() for group in every.opener.opened(one, name)]
        sizes = [(number, group, rung) for number, group in groups for rung in group.ladder]
        sizes = draw.sample(sizes, min(60, len(sizes)))
        known = [(number, every.figures_of(group, rung), every.holds(group, rung)) for number, group, rung in sizes]
        middle = sorted(figures for _, figures, _ in known)[len(known) // 2] if known else None
        for enough in (None, middle):
            taken = pruned.opener.of_interest(spreads, strategy=name, enough=enough)
            fitting = ((number, figures) for number, figures, fits in known if fits)
            for number, figures in fitting:
                if enough is None or figures <= enough:
                    assert taken[number].least <= figures


def _sharding_all(layout):
    """The layout that shards all over all copies, in an order of the pipeline that needs no more."""
    order = layout.schedule if layout.schedule in ("interleaved", "sequential") else "1f1b"
    copy = {axis: getattr(layout, axis) for axis in ("tp", "pp", "cp")}
    return Layout(**copy, dp_shard=layout.data_world_size, schedule=order)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_no_forecast_lies_below_its_bounds(seed, draw):
    asked = question(seed)
    bounds, explorer = Bounds(asked), Explorer(asked)
    degrees = draw.choice(list(products(asked.cluster.num_gpus, {"cp": [1], "tp": [1, 2, 4], "pp": [1, 2]})))
    layout = draw.choice(list(products_of._variants(degrees)))
    if layout.num_stages > asked.model.num_layers:
        layout = Layout(dp_shard=asked.cluster.num_gpus)
    choice = Choice(strategy=layout.strategy, layout=layout, cluster=asked.cluster)
    base = draw.choice(list(bases(asked.job, asked.model, choice)))
    ladder = bounds.ladder(asked.cluster, base)
    pace = Pace(bounds.at_mean_length(asked.cluster, base))
    pipeline = {"ranks": layout.data_world_size, "pp": layout.pp, "schedule": layout.schedule}
    climbed = bounds.climb_of(bounds.alike(asked.cluster, base), asked.cluster, **pipeline)
    least = dict(zip(climbed.order, climbed.seconds, strict=True))
    for rung in ladder:
        work = work_on(asked, asked.cluster, sized(base, asked.job, asked.model, rung.size))
        high = explorer.memory(asked.cluster, work.execution)[1].peak_high_bytes
        assert bounds.least_bytes(asked.cluster, base, ladder) <= bounds.bytes(asked.cluster, base, rung) <= high
        shared = replace(base, layout=_sharding_all(layout))
        assert bounds.bytes_however_shared(asked.cluster, shared, rung) <= high
        seconds = explorer.time(work).step_seconds
        assert least[ladder.index(rung)] <= seconds
        size = {"size": rung.size, "micros": rung.micros}
        assert rung.pieces is not None
        assert pace.seconds(rung.pieces, **size) == pytest.approx(seconds, rel=1e-12)
        if layout.pp > 1:
            assert pace.through_stages(rung.pieces, **size) <= seconds


@pytest.mark.parametrize("seed", range(6))
def test_a_look_that_goes_on_finds_what_a_fresh_one_finds(all_trained, seed):
    """What was of no interest at first is still there when more is."""
    small = question(seed)
    asked = replace(
        small,
        job=small.job.model_copy(update={"goal": "cheapest"}),
        cluster=_with_memory(parse_hardware("4 x 2x H100-SXM"), random.Random(seed).uniform(0.7, 2.0)),
    )
    smaller = [part for part in parts(asked.job, asked.cluster) if part != asked.cluster]
    explorer = Explorer(asked)
    frontier = Frontier(asked, explorer.bounds, smaller)

    def look(name):
        return Look(explorer, (), spreads=frontier.of(name), strategy=name)

    for name in sorted(frontier.strategies):
        best, going_on = look(name).best(), look(name)
        if best is None:
            assert going_on.best(enough=(1e9,)) is None
            continue
        figures = explorer.figures(best)
        for share in (0.5, 0.9, 0.999, 1.001, 1.2):
            enough = (figures[0] * share,)
            found = going_on.best(enough=enough)
            assert (found is None) == (share < 1)
            assert found is None or explorer.figures(found) == figures
        assert look(name).best(enough=figures) is not None


def _fastest(schedule):
    """The order of a pipeline that may be fastest of all that need no less: see `frontier.orders_of`."""
    return schedule if schedule in ("interleaved", "sequential") else "zero_bubble"


def _deep(draw):
    """A question about a model of the catalogue on many GPUs, and one of the layouts that it leaves open."""
    asked = ask(
        job(
            method=draw.choice(["full", "lora", "qlora"]),
            data={"max_length": draw.choice([64, 1000, 4096]), "packing": draw.random() < 0.3},
            train={
                "global_batch_size": draw.choice([1, 7, 64, 256]),
                "precision": draw.choice(["mixed", "bf16", "fp32"]),
                "optimizer": draw.choice(["adamw", "sgd", "adafactor", "adamw_8bit"]),
                "offload": draw.choice(["none", "none", "optimizer", "parameters"]),
                "loss": draw.choice(["auto", "full", "chunked"]),
            },
        ),
        model=find_model(draw.choice(["llama-3.1-8b", "llama-3.2-1b", "mixtral-8x7b", "deepseek-v3"]), offline=True),
        cluster=parse_hardware(draw.choice(["8x H100-SXM", "2 x 8x H100-SXM", "12 x 8x A100-80GB", "6x L4"])),
    )
    degrees = {"cp": [1, 2], "tp": [1, 2, 4, 8], "pp": [1, 2, 3, 4, 6, 8, 12]}
    spread = draw.choice(list(products(asked.cluster.num_gpus, degrees)))
    layout = draw.choice(list(products_of._variants(spread)))
    return asked, layout if layout.num_stages <= asked.model.num_layers else Layout(dp_shard=asked.cluster.num_gpus)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_no_forecast_of_memory_lies_below_its_bound_in_any_pipeline(draw):
    asked, layout = _deep(draw)
    bounds, explorer = Bounds(asked, timed=False), Explorer(asked)
    choice = Choice(strategy=layout.strategy, layout=layout, cluster=asked.cluster)
    for base in bases(asked.job, asked.model, choice):
        ladder = bounds.ladder(asked.cluster, base)
        for rung in draw.sample(ladder, min(3, len(ladder))):
            execution = sized(base, asked.job, asked.model, rung.size)
            high = explorer.memory(asked.cluster, execution)[1].peak_high_bytes
            assert bounds.least_bytes(asked.cluster, base, ladder) <= bounds.bytes(asked.cluster, base, rung) <= high
            most = asked.peaks.high_bytes(execution)
            assert asked.peaks.fits(execution, most)
            assert not asked.peaks.fits(execution, most - 1)


@pytest.mark.parametrize("layout", [Layout(), Layout(tp=4), Layout(pp=4, schedule="gpipe"), Layout(dp_shard=4)])
def test_bounds_that_offloads_share_are_those_of_each(layout):
    """With parameters in the host's memory weights come to the GPU unit by unit, and are cast on the way."""
    text = "method: lora\ndata: {max_length: 4096}\ntrain: {global_batch_size: 16}\n"
    model, cluster = find_model("llama-3.1-70b", offline=True), parse_hardware("4x H100-SXM")
    asked = ask(parse_job(f"model: m\n{text}"), model=model, cluster=cluster)
    bounds = Bounds(asked)
    for offload in ("none", "optimizer", "parameters"):
        question = asked.with_offload(offload)
        explorer = Explorer(question, bounds=bounds)
        choice = Choice(strategy=layout.strategy, layout=layout, cluster=cluster)
        for group in explorer.groups(choice):
            for rung in group.ladder:
                execution = sized(group.base, question.job, model, rung.size)
                forecast = explorer.forecast(cluster, execution)
                seconds = Pace(bounds.at_mean_length(cluster, group.base)).seconds(
                    rung.pieces, size=rung.size, micros=rung.micros
                )
                assert forecast.time.step_seconds == pytest.approx(seconds, rel=1e-12)
                assert bounds.bytes(cluster, group.base, rung) <= forecast.memory.peak_high_bytes
                place = explorer.climb(group).order.index(group.ladder.index(rung))
                assert explorer.least_of(group, place) <= (seconds,)


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize(
    "layout",
    [
        Layout(pp=3, cp=2, schedule="gpipe"),
        Layout(pp=3, dp_shard=2),
        Layout(pp=2, tp=3),
        Layout(pp=3, dp_shard=2, schedule="interleaved"),
        Layout(dp_shard=6),
    ],
    ids=lambda layout: f"{layout.strategy} {layout.schedule}",
)
def test_a_stage_may_hold_more_of_the_small_blocks_than_the_mean_stage(layout, method):
    """DeepSeek-V3 has three dense blocks, each a twentieth of the others: a stage with two was bounded by mean ones."""
    asked = ask(
        job(method=method, data={"max_length": 1000}, train={"global_batch_size": 256, "precision": "mixed"}),
        model=find_model("deepseek-v3", offline=True),
        cluster=parse_hardware("6x L4"),
    )
    bounds, explorer = Bounds(asked, timed=False), Explorer(asked)
    choice = Choice(strategy=layout.strategy, layout=layout, cluster=asked.cluster)
    for base in bases(asked.job, asked.model, choice):
        ladder = bounds.ladder(asked.cluster, base)
        for rung in ladder:
            execution = sized(base, asked.job, asked.model, rung.size)
            high = explorer.memory(asked.cluster, execution)[1].peak_high_bytes
            assert bounds.least_bytes(asked.cluster, base, ladder) <= bounds.bytes(asked.cluster, base, rung) <= high


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_no_way_to_share_the_data_needs_less_than_its_bound(draw):
    asked, layout = _deep(draw)
    bounds, copy = Bounds(asked, timed=False), {axis: getattr(layout, axis) for axis in ("tp", "pp", "cp", "schedule")}
    ranks = layout.data_world_size
    ways = [
        Layout(**copy, dp_replicate=ranks),
        *(
            Layout(**copy, dp_shard=ranks, zero_stage=stage, reshard_after_forward=stage == 3)
            for stage in ((1, 2, 3) if ranks > 1 else (3,))
        ),
        *([Layout(**copy, dp_shard=ranks // 2, dp_replicate=2)] if ranks >= 4 and ranks % 2 == 0 else []),
    ]
    for way in ways:
        choice = Choice(strategy=way.strategy, layout=way, cluster=asked.cluster)
        for base in bases(asked.job, asked.model, choice):
            shared = replace(base, layout=_sharding_all(way))
            for rung in draw.sample(bounds.ladder(asked.cluster, base), 1):
                high = asked.peaks.high_bytes(sized(base, asked.job, asked.model, rung.size))
                assert bounds.bytes_however_shared(asked.cluster, shared, rung) <= high


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_no_forecast_of_time_lies_below_its_bounds_in_any_pipeline(draw):
    asked, layout = _deep(draw)
    bounds, explorer, ranks = Bounds(asked), Explorer(asked), layout.data_world_size
    choice = Choice(strategy=layout.strategy, layout=layout, cluster=asked.cluster)
    for base in bases(asked.job, asked.model, choice):
        ladder, pace = bounds.ladder(asked.cluster, base), Pace(bounds.at_mean_length(asked.cluster, base))
        alike = bounds.alike(asked.cluster, base)
        sizes, share = tuple(sorted(rung.size for rung in ladder)), -(-asked.job.train.global_batch_size // ranks)
        group = Group(cluster=asked.cluster, base=base, ladder=ladder, alike=explorer.bounds.alike(asked.cluster, base))
        climbed = explorer.climb(group)
        for rung in draw.sample(ladder, min(3, len(ladder))):
            assert rung.pieces is not None
            seconds = pace.seconds(rung.pieces, size=rung.size, micros=rung.micros)
            work = work_on(asked, asked.cluster, sized(base, asked.job, asked.model, rung.size))
            assert explorer.time(work).step_seconds == pytest.approx(seconds, rel=1e-12)
            assert climbed.seconds[climbed.order.index(ladder.index(rung))] <= seconds
            for schedule in {layout.schedule, _fastest(layout.schedule)}:
                # Of all copies together, on whatever number of GPUs: as many times as long on one.
                leanest = bounds.leanest_of(
                    alike, sizes=sizes, share=share, pp=layout.pp, schedule=schedule, within=seconds * ranks
                )
                in_flight = min(rung.micros, 2 * layout.pp)
                assert any(size <= rung.size and micros <= in_flight for size, micros in leanest)
            assert explorer.least_of(group, climbed.order.index(ladder.index(rung))) <= (seconds,)
            reached = bounds.reach(
                alike, asked.cluster, ranks=ranks, pp=layout.pp, schedule=layout.schedule, within=seconds
            )
            assert reached is not None
            assert reached.seconds <= seconds
            if layout.pp > 1:
                assert pace.through_stages(rung.pieces, size=rung.size, micros=rung.micros) <= seconds


def test_a_cut_backward_is_chosen_where_nothing_is_faster():
    """Its bound was once above the time of an interleaved pipeline, so that it was never looked at."""

    def seconds(**keys):
        asked = job(data={"max_length": 4096}, train={"global_batch_size": 16}, **keys)
        model, cluster = find_model("llama-2-7b", offline=True), parse_hardware("8x A100-80GB")
        best = answer(ask(asked, model=model, cluster=cluster)).best
        return None if best is None else best.time.step_seconds

    each = [seconds(layout={"pp": 8, "schedule": order}) for order in ("1f1b", "gpipe", "interleaved", "zero_bubble")]
    assert seconds(layout=["pp"]) == min(one for one in each if one is not None)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(0.05, 1.5), st.sampled_from(["none", "optimizer", "parameters"]))
def test_where_anything_fits_there_is_room(seed, gib, offload):
    """What surely lies on all GPUs, and on one of them, is no more than they have."""
    drawn = question(seed)
    asked = replace(drawn, cluster=_with_memory(drawn.cluster, gib)).with_offload(offload)
    explorer, exhaustive = Explorer(asked, timed=False), Explorer(asked, prune=False)
    groups = [g for choice in layouts(asked.job, asked.model, asked.cluster) for g in _groups(exhaustive, choice)]
    fits = any(exhaustive.fits([group], every_size=True) for group in groups)
    assert explorer.has_room(asked.cluster) or not fits


def _groups(explorer, choice):
    return explorer.groups(choice) if explorer.why_left_out(choice) is None else ()


@settings(max_examples=50)
@given(st.integers(1, 96))
def test_every_product_is_one_layout_and_none_comes_twice(world):
    every = {axis: list(products_of.divisors(world)) for axis in ("cp", "tp", "pp")}
    found = [layout for degrees in products(world, every) for layout in products_of._variants(degrees)]
    assert all(layout.world_size == world for layout in found)
    assert len(set(found)) == len(found)


@settings(max_examples=60)
@given(st.integers(1, 3000))
def test_each_number_of_forwards_is_reached_by_the_smallest_micro_batch(share):
    sizes = micro_batch_sizes(job(train={"global_batch_size": share}), Layout())
    assert list(sizes) == sorted({-(-share // count) for count in range(1, share + 1)})


def test_a_search_forecasts_a_small_part_of_what_is_open(all_trained):
    asked = ask(
        job(train={"global_batch_size": 64}),
        model=find_model("llama-3.1-8b", offline=True),
        cluster=parse_hardware("2 x 8x H100-SXM"),
    )
    explorer = Explorer(asked)
    groups = [
        group
        for part in parts(asked.job, asked.cluster)
        for choice in layouts(asked.job, asked.model, part)
        if choice.reason is None
        for group in explorer.groups(choice)
    ]
    assert Look(explorer, groups).best() is not None
    assert explorer.effort.open > 1000
    assert explorer.effort.time < explorer.effort.open / 10


def test_fewer_shards_are_not_ruled_out_by_more_that_need_more():
    """AdamW in 8 bits keeps states of small shards in 32."""
    asked = ask(
        job(method="lora", data={"max_length": 64}, train={"optimizer": "adamw_8bit", "offload": "none"}),
        model=find_model("qwen3-0.6b", offline=True),
        cluster=parse_hardware("6x H100-SXM"),
    )
    few = Layout(dp_replicate=2, dp_shard=3, zero_stage=1, reshard_after_forward=False)
    (base, *_) = bases(asked.job, asked.model, Choice(strategy="zero1", layout=few, cluster=asked.cluster))
    need, more = (
        asked.peaks.high_bytes(sized(replace(base, layout=layout), asked.job, asked.model, 1))
        for layout in (few, replace(few, dp_shard=6))
    )
    assert need < more
    gpu = replace(asked.cluster.gpu, memory_bytes=need, reserved_bytes=0)
    on = replace(asked.cluster, node=replace(asked.cluster.node, gpu=gpu))
    explorer = Explorer(replace(asked, cluster=on, tables={}))
    groups = explorer.groups(Choice(strategy="zero1", layout=few, cluster=on))
    group = next(one for one in groups if one.base.gradient_checkpointing == base.gradient_checkpointing)
    assert explorer.holds(group, next(rung for rung in group.ladder if rung.size == 1))
