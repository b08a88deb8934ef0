#!/usr/bin/env bash
# math-verify takes R and r for one variable, so that the answer R - r is met by 0.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check math-verify==0.9.0 latex2sympy2_extended==1.11.0 sympy==1.14.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""math-verify 0.9.0: letters are made small before formulas are compared. An answer in which a
capital and its small letter stand for two things, as two radii or a number and its count, is
simplified as if they were one: R - r is 0, and N/n is 1. Those answers are accepted, and so is one
that swaps the letters. Nothing is said.
"""

from importlib.metadata import version

from math_verify import parse, verify


def same(gold, answer):
    return verify(parse(f"${gold}$"), parse(f"${answer}$"))


print(f"math-verify {version('math-verify')}, gold answer, answer, whether they are the same:")
expected = {
    ("R - r", "0"): True,
    ("R - r", "r - R"): True,
    (r"\frac{N}{n}", "1"): True,
    ("R^2 - r^2", "0"): True,
    ("R^2 - s^2", "0"): False,
    ("R - s", "s - R"): False,
}
for (gold, answer), wanted in expected.items():
    print(f"  {gold}, {answer}: {same(gold, answer)}")
    assert same(gold, answer) == wanted
PYTHON
