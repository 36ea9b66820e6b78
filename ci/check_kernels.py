"""Checks the compiled kernels of a wheel without a GPU, and compares their size with the committed table.

    python ci/check_kernels.py WHEEL BUILD_LOG            # compare with ci/kernel_table.json
    python ci/check_kernels.py WHEEL BUILD_LOG --record   # write that table anew

BUILD_LOG is the output of the build that made the wheel, with what `ptxas -v` said of each kernel. Every
kernel must be free of stack, spills and local memory; a matrix product must have HGMMA instructions that
ptxas did not serialize, and no memory barrier among them. The table holds one line per matrix product, so
that a change shows in the diff.
"""

import argparse
import difflib
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

import sass

TABLE = Path(__file__).with_name("kernel_table.json")
MAX_WHEEL_BYTES = 10_000_000
LIBRARY = "hopgemm/libhopgemm.so"

# "wgmma serialized", "setmaxnreg ignored" and their kin: correct, and slow without a word at run time.
_SERIALIZED = re.compile(r"^.*\bC75(?:0[89]|1[0-7])\b.*$", re.MULTILINE)
_INSTANCE = re.compile(r"_ZN7hopgemm9instances(\d+)(\w+)")  # hopgemm::instances::<name of the config>
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def config_name(mangled):
    """The config that a kernel was compiled for; None for a kernel that is no matrix product."""
    match = _INSTANCE.match(mangled)
    return match and match[2][: int(match[1])]


def read_ptxas(log):
    """{mangled name: registers} of every kernel in the log, and complaints about any of its functions."""
    registers, problems = {}, [match[0].strip() for match in _SERIALIZED.finditer(log)]
    entry = function = None
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)' for 'sm_90a'", line):
            entry = match[1]
        elif match := re.search(r"Function properties for (\w+)", line):
            function = match[1]
        elif (match := _FRAME.search(line)) and any(int(n) for n in match.groups()):
            problems.append(f"{config_name(function) or function}: {match[0]}")
        elif match := re.search(r"Used (\d+) registers", line):
            registers[entry] = int(match[1])
    return registers, problems


def read_resources(text):
    """Complaints about stack and local memory in the output of `cuobjdump -res-usage`."""
    found = re.findall(r"Function (\w+):\s+(REG:\d+ STACK:(\d+) .*?LOCAL:(\d+))", text)
    return [f"{config_name(n) or n}: {usage}" for n, usage, stack, local in found if int(stack) or int(local)]


def unfenced_stores(function):
    """Addresses of TMA stores before which shared memory was written with no FENCE.VIEW.ASYNC between."""
    unfenced, written = [], False
    for at, code in sorted(function.code.items()):
        if re.search(r"\bSTSM?\b", code):
            written = True
        elif "FENCE.VIEW.ASYNC" in code:
            written = False
        elif "UTMASTG" in code and written:
            unfenced.append(at)
    return unfenced


def describe(function):
    """(problems, instructions and HGMMA in the main loop) of one matrix product."""
    name, hgmma = config_name(function.name), function.addresses_of("HGMMA")
    loop = sass.main_loop(function, "HGMMA")
    if loop is None:
        return [f"{name}: no loop with HGMMA ({len(hgmma)} HGMMA in all)"], {}
    barriers = function.addresses_of("MEMBAR")
    # A cooperative kernel stages the last tile's result between the first steps of the next main loop: the
    # fence of its TMA stores, at CTA scope, lies among the HGMMA but not in the loop. (A GPU-scope one halves
    # the speed.)
    inside = [
        at
        for at in barriers
        if at in loop.body or (min(hgmma) < at < max(hgmma) and ".CTA" not in function.code[at])
    ]
    problems = [f"{name}: MEMBAR among HGMMA, at {at:#x}: {function.code[at]}" for at in inside]
    problems += [
        f"{name}: no proxy fence before the bulk store at {at:#x}" for at in unfenced_stores(function)
    ]
    return problems, {"main_loop": len(loop.body), "hgmma": len(loop.body.intersection(hgmma))}


def check(functions, resources, log):
    """(problems, table) from the machine code, what `cuobjdump -res-usage` says, and the log of the build."""
    registers, problems = read_ptxas(log)
    problems += read_resources(resources)
    table = {}
    for function in functions:
        name = config_name(function.name)
        if function.name not in registers:
            problems.append(f"{name or function.name}: not in the build log: nothing is known of its spills")
        elif name:
            trouble, row = describe(function)
            problems += trouble
            table[name] = {"registers": registers[function.name], **row}
    if not table:
        problems.append("no matrix product in the library")
    return problems, dict(sorted(table.items()))


def as_text(compiler, table):
    """The table as JSON with one kernel a line."""
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
    return f'{{"compiler": {json.dumps(compiler)},\n "kernels": {{\n{rows}\n}}}}\n'


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--record", action="store_true", help=f"write {TABLE.name} instead of comparing")
    args = parser.parse_args()

    log = args.log.read_text()
    compiler = re.search(r"The CUDA compiler identification is (NVIDIA [\d.]+)", log)[1]
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(args.wheel) as wheel:
        library = wheel.extract(LIBRARY, folder)
        with _cuobjdump("-sass", library) as code, _cuobjdump("-res-usage", library) as usage:
            problems, table = check(sass.parse(code.stdout), usage.stdout.read(), log)
    for process in (code, usage):
        if process.returncode:
            problems.append(f"{process.args}: exit status {process.returncode}")
    if args.wheel.stat().st_size >= MAX_WHEEL_BYTES:
        problems.append(f"{args.wheel.name}: {args.wheel.stat().st_size} bytes, allowed {MAX_WHEEL_BYTES}")

    new = as_text(compiler, table)
    if args.record and not problems:
        TABLE.write_text(new)
    old = TABLE.read_text() if TABLE.exists() else ""
    diff = difflib.unified_diff(old.splitlines(), new.splitlines(), "committed", "built", lineterm="", n=0)
    recorded = json.loads(old)["compiler"] if old else compiler
    if recorded != compiler:
        print(f"NOT COMPARED with {TABLE.name}: this is {compiler}, the table is {recorded}'s")
    elif old != new:
        problems += [*diff, f"{TABLE.name} differs. If that is meant: ci/wheel --record, and commit it."]
    print(
        "\n".join(problems) or f"{len(table)} matrix products as recorded; no stack, spill, serialized HGMMA"
    )
    return bool(problems)


def _cuobjdump(*arguments):
    """The tool that PyPI put into this environment, running; its output is a pipe."""
    path = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "bin", "cuobjdump")
    return subprocess.Popen([path, *arguments], stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    sys.exit(main())
