#!/usr/bin/env bash
# A distributed checkpoint loads nothing into entries whose key is a number, as an optimizer's count of steps.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: `torch.distributed.checkpoint` names what it saves by its path, as text. Tensors come back wherever they lie. Other values below
a key that is no text are put beside it, under its text: {1: 0.5} loaded into {1: 0} is {1: 0, "1": 0.5}, and at the top nothing is
loaded at all. The state of an optimizer has such keys: a count of steps that is a plain number stays as it was. Nothing is said.
"""

import copy
import warnings

import torch
import torch.distributed.checkpoint as checkpoint

warnings.simplefilter("ignore")


def loaded(saved, into):
    checkpoint.save(saved, checkpoint_id="saved")
    checkpoint.load(into, checkpoint_id="saved")
    return into


print(f"torch {torch.__version__}:")
for saved, into, wanted in (
    ({"best": {"1": 0.5}}, {"best": {"1": 0}}, {"best": {"1": 0.5}}),
    ({"best": {1: 0.5}}, {"best": {1: 0}}, {"best": {1: 0, "1": 0.5}}),
    ({"best": {True: 0.5}}, {"best": {True: 0}}, {"best": {True: 0, "True": 0.5}}),
    ({1: 0.5}, {1: 0}, {1: 0}),
):
    given = copy.deepcopy(into)
    found = loaded(saved, into)
    print(f"  {saved} loaded into {given}: {found}")
    assert found == wanted
tensors = loaded({"best": {1: torch.ones(2)}}, {"best": {1: torch.zeros(2)}})
print(f"  a tensor of ones: {tensors}")
assert list(tensors["best"]) == [1] and tensors["best"][1].tolist() == [1, 1]


class Counting(torch.optim.Optimizer):
    """Steps of 1, 1/2, 1/3 and so on, which it counts in its state."""

    def __init__(self, weights):
        super().__init__(weights, {})

    def step(self):
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            state["step"] = state.get("step", 0) + 1
            state["sum"] = state.get("sum", torch.zeros_like(weight)) + weight.grad
            weight.data.sub_(weight.grad / state["step"])


def stepped(times):
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    optimizer = Counting([weight])
    for _ in range(times):
        optimizer.step()
    return optimizer


optimizer, resumed = stepped(7), stepped(1)
state = loaded({"optimizer": optimizer.state_dict()}, {"optimizer": resumed.state_dict()})["optimizer"]["state"]
print(f"  state of an optimizer after seven steps, loaded into one after one step: {state}")
assert state[0]["step"] == 1 and state[0]["sum"].item() == 7 and state["0"] == {"step": 7}
PYTHON
