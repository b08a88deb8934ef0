// Run by Node.js where a folder is made: compiles the archive's modules with the Python that will run them, which then
// starts a second earlier. Arguments: where Pyodide is, and the archive.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [place, archive] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(place + "/pyodide.mjs").href);
const python = await loadPyodide();
python.FS.writeFile("/given.zip", new Uint8Array(readFileSync(archive)));
python.runPython(`
import os, py_compile, zipfile
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
with zipfile.ZipFile("/given.zip") as given, zipfile.ZipFile("/made.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
    for one in given.infolist():
        content = given.read(one)
        if one.filename.endswith(".py"):
            with open("/one.py", "wb") as file:
                file.write(content)
            py_compile.compile("/one.py", cfile="/one.pyc", dfile=one.filename, doraise=True, invalidation_mode=mode)
            with open("/one.pyc", "rb") as file:
                content = file.read()
            one = zipfile.ZipInfo(one.filename + "c")
            one.compress_type = zipfile.ZIP_DEFLATED
        made.writestr(one, content)
`);
writeFileSync(archive, python.FS.readFile("/made.zip"));
