#!/usr/bin/env bash
# @dsnp/parquetjs reads the upper half of unsigned columns as negative numbers.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
cd "$folder"
echo '{"type": "module"}' > package.json
npm install --silent --no-audit --no-fund --save-exact @dsnp/parquetjs@1.8.8 hyparquet@1.33.0 > npm.log
cat > read.mjs <<'JAVASCRIPT'
import parquet from "@dsnp/parquetjs";
import { asyncBufferFromFile, parquetReadObjects } from "hyparquet";

const text = (rows) => rows.map((row) => Object.fromEntries(Object.entries(row).map(([name, value]) => [name, String(value)])));
const cursor = (await parquet.ParquetReader.openFile("rows.parquet")).getCursor();
const found = [];
for (let row; (row = await cursor.next()); ) found.push(row);
const others = await parquetReadObjects({ file: await asyncBufferFromFile("rows.parquet") });
console.log(JSON.stringify({ parquetjs: text(found), hyparquet: text(others) }));
JAVASCRIPT
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""@dsnp/parquetjs 1.8.8: Parquet stores a uint32 in the 32 bits of an int32 and says in the schema that it has no sign, as for a uint64.
The reader passes over that: 2**31 is -2,147,483,648 and 2**32 - 1 is -1, as it is with hashes, seeds and IDs that take the whole range. pyarrow
and hyparquet read what was written. uint8 and uint16 are right, for those never reach the bit of the sign.
"""

import json
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq

values = {
    kind: [1, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1]
    for kind, bits in (("uint8", 8), ("uint16", 16), ("uint32", 32), ("uint64", 64))
}
pq.write_table(pa.table({kind: pa.array(numbers, getattr(pa, kind)()) for kind, numbers in values.items()}), "rows.parquet", compression="none")
script = subprocess.run(["node", "read.mjs"], check=True, capture_output=True, text=True)
found = {name: {kind: [int(row[kind]) for row in rows] for kind in values} for name, rows in json.loads(script.stdout).items()}
found["pyarrow"] = pq.read_table("rows.parquet").to_pydict()
print(f"@dsnp/parquetjs 1.8.8, hyparquet 1.33.0, pyarrow {pa.__version__}:")
for kind, numbers in values.items():
    print(f"  {kind} {numbers}: " + ", ".join(f"{name} {columns[kind]}" for name, columns in found.items()))
    assert found["pyarrow"][kind] == found["hyparquet"][kind] == numbers
    bits = int(kind.removeprefix("uint"))
    wanted = [number - 2**bits if bits > 16 and number >= 2 ** (bits - 1) else number for number in numbers]
    assert found["parquetjs"][kind] == wanted
PYTHON
