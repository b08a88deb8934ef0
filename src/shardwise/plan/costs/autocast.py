"""Autocast: copies of weights in the compute type, gradients waiting for them, what both move."""

from shardwise.plan.work import Scene, Work


def weight_casts(scene: Scene, *, blocks: float, at_work: float = 1) -> float:
    """Copies of blocks' trained matrices in the compute type, which autocast makes at first use and
    keeps (`step_casts`: those of a step). Of slices, in compiled blocks and of adapters joined by
    one product, products keep them: under recompute only a block `at_work` has them."""
    execution = scene.work.execution
    again = at_work if execution.recompute != "none" else blocks
    cast = again if execution.layout.tp > 1 or execution.compile else blocks
    of = scene.part.cast_experts if execution.keeps_casts else scene.part.cast_matrices
    # A's are brought together, B's cast where they are wider; a profile has seen both.
    a, b = (0.0, 0.0) if scene.work.profile else scene.part.joined_adapters
    joined = (a + b if scene.work.setting.casts else a) * scene.work.types.compute
    return again * joined + _casts(scene, of, blocks=cast)


def step_casts(scene: Scene) -> float:
    """Those that all micro-batches of a step use, and the head's."""
    if not scene.work.execution.keeps_casts:
        return 0
    return _cast_once(scene, blocks=scene.part.inventory.num_blocks) + _head_cast(scene)


def waiting_for_casts(scene: Scene, *, blocks: int) -> float:
    """Gradients of casts that all micro-batches of a step use, of blocks that a backward has
    passed. In a later one than the first they wait for its end: autograd goes first to what was
    made last, and the casts were made before."""
    later = scene.work.execution.keeps_casts and scene.flight.gradients
    return _cast_once(scene, blocks=blocks) if later else 0


def _casts(scene: Scene, of: tuple[float, float], *, blocks: float) -> float:
    """Copies of so many elements `of` the largest block, or the mean one, in the compute type."""
    largest, mean = of
    return blocks * (largest if blocks == 1 else mean) * scene.work.types.compute if scene.work.setting.casts else 0


def _cast_once(scene: Scene, *, blocks: float) -> float:
    """Those that autocast keeps for a step; of stacked experts each forward makes its own."""
    of_experts = _casts(scene, scene.part.cast_experts, blocks=blocks)
    return _casts(scene, scene.part.cast_matrices, blocks=blocks) - of_experts


def kept_casts(scene: Scene, *, blocks: float) -> float:
    """Those that outlive the forward for a backward: not where blocks are computed again."""
    kept = blocks if scene.work.execution.recompute == "none" else 0
    return weight_casts(scene, blocks=kept, at_work=0)


def head_cast(scene: Scene) -> float:
    """The head's weight in the compute type, if stored in float32: cast in each loss, or step."""
    return 0 if scene.work.execution.keeps_casts else _head_cast(scene)


def _head_cast(scene: Scene) -> float:
    work = scene.work
    wide = work.setting.casts and scene.part.trained_head
    return scene.part.head_elements * work.types.compute if wide else 0


def fresh_gradient(work: Work, elements: int) -> float:
    """One weight's gradient before it is accumulated; autocast adds the one in the compute type."""
    if work.sharded:
        return 0
    return elements * (work.types.trainable + (work.types.compute if work.setting.casts else 0))


def weight_bytes(work: Work, trained: float) -> tuple[float, float]:
    """Bytes a micro-batch moves of so many trained elements: copies in the compute type in forward;
    in backward those of gradients, and their sum over micro-batches. `fsdp.py`: FSDP's."""
    if work.sharded:
        return 0.0, 0.0
    wide, several = work.types.trainable, work.execution.gradient_accumulation_steps > 1
    copied = trained * (wide + work.types.compute) if work.setting.casts else 0.0
    return copied, copied + 3 * wide * trained * several
