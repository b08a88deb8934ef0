#!/usr/bin/env bash
# Apache Arrow in JavaScript gives decimals without their point: 0.25 is 25.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
cd "$folder"
echo '{"type": "module"}' > package.json
npm install --silent --no-audit --no-fund --save-exact apache-arrow@21.2.0 > npm.log
cat > read.mjs <<'JAVASCRIPT'
import { readFileSync } from "fs";
import { tableFromIPC } from "apache-arrow";

const table = tableFromIPC(readFileSync("rows.arrow"));
const found = {};
for (const { name } of table.schema.fields) {
  const values = [...table.getChild(name)];
  found[name] = { text: values.map(String), number: values.map(Number), json: JSON.stringify(values), row: String(table.get(0)) };
}
console.log(JSON.stringify(found));
JAVASCRIPT
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""apache-arrow 21.2.0 from npm: a decimal column holds whole numbers and a scale, the count of digits behind the point. A value of the
column is the whole number alone, as text, as a number and as JSON, with the scale left in the column's type: 0.25 of two digits is
25, of four 2,500. Prices and shares are so many times too large. Of decimals of 256 bits the text is the last digit, or little more.
Floating point is as it was written.
"""

import json
import subprocess
from decimal import Decimal

import pyarrow as pa

values = [Decimal("0.25"), Decimal("1.10"), Decimal("-0.01")]
kinds = ((128, pa.decimal128), (256, pa.decimal256))
columns = {f"decimal{bits}, {scale} digits": pa.array(values, kind(9, scale)) for bits, kind in kinds for scale in (2, 4)}
table = pa.table({"double": pa.array([float(value) for value in values]), **columns})
with pa.OSFile("rows.arrow", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
    writer.write_table(table)
script = subprocess.run(["node", "read.mjs"], check=True, capture_output=True, text=True)
found = json.loads(script.stdout)
print(f"apache-arrow 21.2.0, of pyarrow {pa.__version__}'s {', '.join(map(str, values))}:")
for name, read in found.items():
    print(f"  {name}: as text {read['text']}, as numbers {read['number']}, as JSON {read['json']}")
    scale = 0 if name == "double" else int(name.split()[1])
    assert read["number"] == [float(value * 10**scale) for value in values]
    assert ([float(number) for number in read["text"]] == read["number"]) == ("256" not in name)
assert table.to_pydict()["decimal128, 2 digits"] == values
PYTHON
