"""ZeRO-1's windows: views of whole weights, gradients that are freed, states for this rank's rows, rows exchanged."""

from shardwise.spec.layout.axes import Layout
from shardwise.spec.run import RunDirectory
from shardwise.train.guards.checks import GuardError
from shardwise.train.guards.replicas import check_replicas
from tests.dist.cells import ZERO1, composed, execution, prepare_cell
from tests.dist.worlds import run_world, said_by

CHOSEN = execution(Layout(dp_shard=3, **ZERO1), micro_batch_size=3)


def _one_step(run: RunDirectory) -> tuple[bool, bool, int, int]:
    built = composed(run, CHOSEN)
    built.step(next(iter(built.batches.from_(0))))
    had = all(parameter.grad is not None for parameter in built.model.trainable)
    built.optimizer.step()
    built.optimizer.zero_grad()
    freed = all(parameter.grad is None for parameter in built.model.trainable)
    check_replicas(built.world, built.model.parameters, when="after step 1")
    mine = sum(v.numel() for state in built.optimizer.state.values() for v in state.values() if v.ndim)
    return had, freed, mine, sum(parameter.numel() for parameter in built.model.trainable)


def test_gradients_are_whole_until_the_step_and_states_together_are_one_copy(make_job, tmp_path) -> None:
    ranks = run_world(3, _one_step, prepare_cell(make_job(), tmp_path))
    assert all(had and freed for had, freed, _, _ in ranks)
    assert sum(mine for _, _, mine, _ in ranks) == 2 * ranks[0][3]


def _sharded_states(run: RunDirectory) -> str:
    """Sharded states where the layout, by the time they are read back, says that every rank has all of them."""
    built = composed(run, CHOSEN)
    object.__setattr__(built.world, "layout", Layout(dp_replicate=3))
    built.step(next(iter(built.batches.from_(0))))
    return said_by(GuardError, built.optimizer.step)


def test_states_that_are_not_what_the_layout_says_stop_the_run(make_job, tmp_path) -> None:
    said = run_world(3, _sharded_states, prepare_cell(make_job(), tmp_path))[0]
    assert "of the optimizer's exp_avg of " in said
    assert "What was asked is not what runs" in said
