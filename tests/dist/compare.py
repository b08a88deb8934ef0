"""What two trainings are compared by, and how near they have to be."""

import torch

from tests.dist.cells import Trained


def relative(one: list[float], other: list[float]) -> float:
    """The largest relative difference of two series."""
    assert len(one) == len(other) > 0
    return max(abs(a - b) / abs(a) for a, b in zip(one, other, strict=True))


#: Of losses and gradient norms, relative to one process; frameworks and a plain loop agree to 5e-6.
TOLERANCE = 1e-5


def apart(expected: torch.Tensor, found: torch.Tensor) -> float:
    """How far a tensor lies from another, relative to that one's norm: an adapter's B is next to
    nothing after a few steps, and as wrong as anything where it differs by a share of that."""
    return float((expected.double() - found.double()).norm()) / (float(expected.double().norm()) or 1.0)


#: What rounding makes, in dozens of steps, of a weight that starts at zero and has no gradient.
ROUNDING = 1e-9


def must_record_the_same(expected: Trained, found: Trained) -> None:
    """The figures of every step."""
    assert len(found.metrics) == len(expected.metrics) > 0
    for near in ("loss", "grad_norm"):
        assert relative(expected.series(near), found.series(near)) <= TOLERANCE, near
    for exact in ("step", "epoch", "learning_rate", "tokens", "trained_tokens"):
        assert found.series(exact) == expected.series(exact), exact


def must_equal(expected: Trained, ranks: list[Trained], *, without_gradient: str | None = None) -> None:
    """What was trained: figures of every step, final weights, frozen bytes; the same weights on all
    ranks. `without_gradient`: how names of weights end that are zero but for rounding, and stay
    so."""
    must_record_the_same(expected, ranks[0])
    held = {name: weight for rank in ranks for name, weight in rank.weights.items()}
    assert held.keys() == expected.weights.keys()
    kept = {name: bits for rank in ranks for name, bits in rank.frozen.items()}
    assert expected.frozen.items() <= kept.items()
    assert {*kept.values()} == {*expected.frozen.values()}, "a tied weight may have its other name in the last stage"
    for rank in ranks:
        assert rank.frozen.items() <= kept.items(), "ranks hold different frozen weights"
        for name, weight in rank.weights.items():
            if without_gradient is not None and name.endswith(without_gradient):
                assert max(float(expected.weights[name].abs().max()), float(weight.abs().max())) <= ROUNDING, name
            else:
                assert apart(expected.weights[name], weight) <= TOLERANCE, name
            assert torch.allclose(weight, expected.weights[name], rtol=1e-5, atol=1e-6), name
            assert torch.equal(weight, held[name]), f"ranks hold different {name}"


def must_be_the_same(expected: list[Trained], found: list[Trained]) -> None:
    """To the last bit, rank by rank: figures of every step and weights."""
    for one, other in zip(expected, found, strict=True):
        for figure in ("loss", "grad_norm", "learning_rate"):
            assert [*map(repr, other.series(figure))] == [*map(repr, one.series(figure))], figure
        assert other.weights.keys() == one.weights.keys()
        assert [name for name, weight in one.weights.items() if not torch.equal(other.weights[name], weight)] == []
