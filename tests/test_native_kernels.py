"""The C++ kernels without XLA: against attention in double, with every instruction set, under the sanitizers.

tests/native/driver.cc holds the problems. Here it is built and run: as the library is built; where
AddressSanitizer and UndefinedBehaviorSanitizer watch every access; where ThreadSanitizer does; and for arm64.
"""

import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oplab.native import build
from oplab.native import compiler as compilers

DRIVER = Path(__file__).parent / "native" / "driver.cc"
ARM = "aarch64-linux-gnu-g++"
# Where freed and fresh memory is NaN, a kernel that reads what it has not written says so.
ASAN = "max_malloc_fill_size=1000000000:malloc_fill_byte=255:detect_stack_use_after_return=1"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the driver guards its arrays with mmap")


@pytest.fixture(scope="module")
def compiler():
    if build.architecture() not in build.UNITS:
        pytest.skip(f"there is no native code for {platform.machine()} processors")
    failed = {}
    for found in compilers.candidates():
        why = compilers.why_not(found)
        if not why:
            return found
        failed[found.name] = why
    pytest.skip(str(compilers.none_found(failed)))


def compile_driver(command, units, flags, folder, sources=build.SOURCES):
    """(program, what the compiler wrote): every unit of the library and the driver, linked with no entry."""

    def compile_unit(unit):
        source = unit.source if isinstance(unit.source, Path) else sources / unit.source
        options = [*build.FLAGS, *unit.flags, *flags, "-I", str(sources)]
        result = compilers.run([*command, *options, "-c", str(source), "-o", f"{unit.name}.o"], folder)
        return unit, result

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        done = list(pool.map(compile_unit, units))
        missing = [unit.name for unit, result in done if result.returncode and unit.optional]
        told = tuple(f"-DOPLAB_NO_{name.upper()}" for name in missing)  # as build.py tells the entry
        done.append(compile_unit(build.Unit(DRIVER, "driver", told)))
    for unit, result in done:
        assert result.returncode == 0 or unit.name in missing, f"{unit.name}: {result.stderr}"
    objects = [f"{unit.name}.o" for unit, _ in done if unit.name not in missing]
    linked = compilers.run([*command, *flags, *objects, "-lpthread", "-o", "driver"], folder)
    assert linked.returncode == 0, linked.stderr
    return folder / "driver", "".join(result.stderr for _, result in done)


def solve(program, *before, **environment):
    """Runs it, and gives what it printed, where every problem came out right and no sanitizer complained."""
    variables = {name: x for name, x in os.environ.items() if name != "OPLAB_ISA"} | environment
    command = [*before, str(program)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240)
    wrong = [line for line in done.stdout.splitlines() if "WRONG" in line]
    assert done.returncode == 0 and not wrong, "\n".join([*wrong[:20], done.stderr[:6000]])
    assert done.stdout.endswith("all is well\n")
    return done.stdout


def needs_runtime(compiler, option, folder):
    """Skips where this compiler has no such sanitizer, or where the system lets no program of it start."""
    result = compilers.run(
        [*compiler.command, option, "-x", "c++", "-", "-o", "trial"], folder, "int main() { return 0; }\n"
    )
    if result.returncode:
        pytest.skip(f"{compiler.name} has no {option} here: {compilers.first_error(result.stderr)}")
    started = subprocess.run([str(folder / "trial")], capture_output=True, text=True)
    if started.returncode:
        pytest.skip(f"no program built with {option} starts here: {compilers.first_error(started.stderr)}")


def test_every_instruction_set_agrees_with_double_precision(compiler, tmp_path):
    units = build.UNITS[build.architecture()]
    target = ["-mcpu=baseline"] if compiler.is_zig else []
    program, written = compile_driver(compiler.command, units, [*target, "-Wall", "-Wextra"], tmp_path)
    ours = (str(build.SOURCES), str(DRIVER))  # GCC warns about its own headers, which is not ours to mend
    warnings = [line for line in written.splitlines() if "warning:" in line and line.startswith(ours)]
    assert not warnings, "\n".join(warnings)
    printed = solve(program)
    assert "some of" in printed or os.cpu_count() == 1, "no thread stayed awake between short calls"
    sets = {line.split()[0] for line in printed.splitlines()[:-1]}
    assert {"plain", "NEON"} & sets
    if sys.platform == "linux" and platform.machine() == "x86_64":
        has = Path("/proc/cpuinfo").read_text().split()
        assert ("AVX2" in sets) == ({"avx2", "fma"} <= set(has))
        wide = {"avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl"}
        assert ("AVX-512" in sets) == (wide <= set(has))


@pytest.mark.parametrize("options", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(compiler, options, tmp_path):
    flag = f"-fsanitize={options}"
    needs_runtime(compiler, flag, tmp_path)
    flags = ["-O1", "-g1", flag, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-w"]
    program, _ = compile_driver(compiler.command, build.UNITS[build.architecture()], flags, tmp_path)
    solve(program, ASAN_OPTIONS=ASAN, UBSAN_OPTIONS="print_stacktrace=1", TSAN_OPTIONS="halt_on_error=1")


@pytest.mark.skipif(shutil.which(ARM) is None, reason=f"{ARM}, which compiles for arm64, is not installed")
def test_arm64(tmp_path):
    flags = ["-static", "-Wall", "-Wextra", "-Werror"]
    program, _ = compile_driver([ARM], build.UNITS["arm64"], flags, tmp_path)
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if platform.machine() == "aarch64":
        emulator = "env"
    if emulator is None:
        pytest.skip("arm64 code compiles; qemu-aarch64, which could run it here, is not installed")
    assert "NEON" in solve(program, emulator)


def test_the_driver_notices_a_wrong_kernel(compiler, tmp_path):
    """The same kernels, with an exponential that is off by a ten-thousandth."""
    sources = tmp_path / "sources"
    shutil.copytree(build.SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
    text = (sources / "vector.h").read_text()
    assert "6.9314686e-1f" in text
    (sources / "vector.h").write_text(text.replace("6.9314686e-1f", "6.9334686e-1f"))
    units = build.UNITS[build.architecture()]
    program, _ = compile_driver(compiler.command, units, ["-O1", "-w"], tmp_path, sources)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 1 and "WRONG" in done.stdout
