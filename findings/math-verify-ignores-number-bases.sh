#!/usr/bin/env bash
# To math-verify 1010 in base two is 1010 in base three, and not ten.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check math-verify==0.9.0 latex2sympy2_extended==1.11.0 sympy==1.14.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""math-verify 0.9.0: the index that says in which base a number is written is dropped. The same
digits in any base are one answer, as is the number in base ten that they would spell, and the value
that they stand for is refused. So a task that asks for a change of base is met by writing the
digits of the question. Nothing is said.
"""

from importlib.metadata import version

from math_verify import parse, verify


def same(gold, answer):
    return verify(parse(f"${gold}$"), parse(f"${answer}$"))


print(f"math-verify {version('math-verify')}, gold answer, answer, whether they are the same:")
expected = {
    ("1010_2", "1010_3"): True,
    ("1010_2", "1010"): True,
    ("1010_2", "10"): False,
    ("12_8", "10_{10}"): False,
    ("x_2", "x_3"): False,
    ("x_2", "x"): False,
}
for (gold, answer), wanted in expected.items():
    print(f"  {gold}, {answer}: {same(gold, answer)}")
    assert same(gold, answer) == wanted
PYTHON
