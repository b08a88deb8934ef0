#!/usr/bin/env bash
# math-verify takes one third for two thirds where both are written as repeating decimals.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check math-verify==0.9.0 latex2sympy2_extended==1.11.0 sympy==1.14.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
r"""math-verify 0.9.0: of a decimal whose repeating digits begin at the point, as 0.\overline{3},
the part before the point is left. So a third, two thirds and 0 are one answer, and 2.\overline{6}
is 2 and not 8/3. Digits before the bar make a product with an unknown of it, which equals neither
1/6 nor 0.1. LaTeX's \bar is read alike. Nothing is said.
"""

from importlib.metadata import version

from math_verify import parse, verify


def same(gold, answer):
    return verify(parse(f"${gold}$"), parse(f"${answer}$"))


print(f"math-verify {version('math-verify')}, gold answer, answer, whether they are the same:")
expected = {
    (r"0.\overline{3}", r"\frac{1}{3}"): False,
    (r"0.\overline{3}", r"0.\overline{6}"): True,
    (r"0.\overline{3}", "0"): True,
    (r"0.\bar{3}", r"0.\bar{6}"): True,
    (r"2.\overline{6}", r"\frac{8}{3}"): False,
    (r"2.\overline{6}", "2"): True,
    (r"0.1\overline{6}", r"\frac{1}{6}"): False,
    (r"\frac{1}{3}", r"\frac{2}{3}"): False,
}
for (gold, answer), wanted in expected.items():
    print(f"  {gold}, {answer}: {same(gold, answer)}")
    assert same(gold, answer) == wanted
PYTHON
