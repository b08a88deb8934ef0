#!/usr/bin/env bash
# math-verify takes every remainder for the right one: of a congruence it compares the modulus.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check math-verify==0.9.0 latex2sympy2_extended==1.11.0 sympy==1.14.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
r"""math-verify 0.9.0: of $x \equiv 3 \pmod 7$ and of $3 \bmod 7$ the parser takes the number at the
end, 7. So each remainder equals each other one, and 7 itself, and the right number alone is
refused. With \mod, which LaTeX has too, $5 \mod 7$ is 5. Nothing is said.
"""

from importlib.metadata import version

from math_verify import parse, verify


def same(gold, answer):
    return verify(parse(f"${gold}$"), parse(f"${answer}$"))


print(f"math-verify {version('math-verify')}, gold answer, answer, whether they are the same:")
expected = {
    (r"x \equiv 3 \pmod 7", r"x \equiv 4 \pmod 7"): True,
    (r"x \equiv 3 \pmod 7", r"x \equiv 3 \pmod 5"): False,
    (r"3 \bmod 7", r"4 \bmod 7"): True,
    (r"3 \bmod 7", "7"): True,
    (r"3 \bmod 7", "3"): False,
    (r"3 \mod 7", "3"): True,
    (r"3 \mod 7", r"4 \mod 7"): False,
}
for (gold, answer), wanted in expected.items():
    print(f"  {gold}, {answer}: {same(gold, answer)}")
    assert same(gold, answer) == wanted
PYTHON
