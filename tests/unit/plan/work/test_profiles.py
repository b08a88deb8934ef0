"""What a profile says of one tensor-parallel rank."""

from shardwise.spec.model.profile import Amount, BlockProfile, ModelProfile, Moment

#: Ten bytes once, and 8 for each token of a row.
EACH = Amount(once=10.0, row=(0.0, 8.0, 0.0))


def profile(recompute, **shares: float) -> ModelProfile:
    amounts = dict.fromkeys(("saved", "forward", "flops", "flops_backward", "moved", "moved_backward"), EACH)
    block = BlockProfile(**amounts, backward=(Moment(alive=EACH, gradients=100, fresh=40),), operators=7.0, **shares)
    what = {"precision": "fp32", "attention": "sdpa", "recompute": recompute, "sharded": False}
    return ModelProfile(**what, shared=EACH, final=EACH, blocks=(block,))


def on_rank(one: ModelProfile, *, stream: float) -> tuple[BlockProfile, ModelProfile]:
    made = one.on_rank(4, held=(0.25,), stream=stream)
    return made.blocks[0], made


def test_a_rank_keeps_what_is_whole_and_its_share_of_the_rest() -> None:
    block, made = on_rank(profile("none", whole=0.5, whole_work=0.0), stream=0.25)
    assert block.saved == block.forward == block.moved == block.backward[0].alive == EACH.times(0.5 + 0.5 / 4)
    assert block.flops == block.flops_backward == EACH.times(0.25)
    assert (block.backward[0].gradients, block.backward[0].fresh) == (25, 10)
    assert (made.final, made.shared, block.saved.once) == (EACH.times(0.25), EACH, 10.0)


def test_what_is_computed_again_is_made_of_the_stream_a_rank_has() -> None:
    for stream in (0.25, 1.0):
        block, _ = on_rank(profile("full", whole=0.5, whole_work=0.0), stream=stream)
        assert block.saved == EACH.times(stream) and block.forward == EACH.times(0.625)


def test_all_is_whole_where_no_slice_was_measured() -> None:
    block, _ = on_rank(profile("none"), stream=0.25)
    assert block.saved == EACH and block.flops == EACH
