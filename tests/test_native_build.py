"""How the native library comes to be: which compiler, built once, kept, found again; and all that can fail.

The library here is tiny, so that each test takes a fraction of a second; the road to it is the real one.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from oplab import native
from oplab.native import build, cache
from oplab.native import compiler as compilers

ROOT = Path(__file__).parents[1]
REAL = next((shutil.which(name) for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
needs_compiler = pytest.mark.skipif(
    REAL is None or sys.platform == "win32", reason="there is no C++ compiler, or no sh, on this machine")

PART = "extern \"C\" const char* part() { return SET; }\n"
EXPORT = 'extern "C" __attribute__((visibility("default")))'
ENTRY = f"""
#include "tiny.h"
extern "C" const char* part();
{EXPORT} const char* oplab_instruction_set() {{ return part(); }}
{EXPORT} int oplab_takes_bfloat16() {{ return 0; }}
"""


@pytest.fixture(autouse=True)
def apart(monkeypatch, tmp_path):
    """Each test has a cache of its own, and a process that has loaded nothing yet."""
    for name in ("CXX", "CONDA_PREFIX", "OPLAB_NATIVE", "OPLAB_STABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "_ended", None)


@pytest.fixture
def recipe(tmp_path):
    sources, include = tmp_path / "sources", tmp_path / "include"
    (include / build.HEADER).parent.mkdir(parents=True)
    (include / build.HEADER).write_text("// version 1\n")
    sources.mkdir()
    (sources / "part.cc").write_text(PART)
    (sources / "tiny.h").write_text("#pragma once\n")
    (sources / "entry.cc").write_text(ENTRY)
    unit = build.Unit("part.cc", "tiny", ('-DSET="tiny"',))
    return build.Recipe(include, sources, (unit,), build.ENTRY, ("-O0", "-std=c++17", "-fvisibility=hidden"))


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """Makes $CXX a script that notes how it is called; gives what was asked of it, without the trial."""
    log, script = tmp_path / "calls", tmp_path / "noting-c++"
    script.write_text(f'#!/bin/sh\necho "$@" >> {log}\nsleep ${{SLEEP:-0}}\nexec {REAL} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return lambda: [line for line in log.read_text().splitlines() if " -c " in line] if log.exists() else []


@pytest.fixture
def tiny(monkeypatch, recipe):
    """native.load() takes the tiny sources, which have no handlers to register."""
    monkeypatch.setattr(native, "_recipe", lambda: recipe)
    monkeypatch.setattr(native, "register", lambda library, targets: None)
    return recipe


def refusal(function=native.load):
    with pytest.raises(native.Unavailable) as caught:
        function()
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


# The road


@needs_compiler
def test_built_loaded_remembered_and_found_again(tiny, calls, capfd, monkeypatch):
    assert native.status()["state"] == "not built" and not cache.folder().exists() and not calls()
    library = native.load()
    assert library.instruction_set == "tiny" and library.path.parent == cache.folder()
    line = r"oplab: building its attention kernel with .+ \(once, some seconds\) \.\.\. done in \d+ s\n"
    assert re.fullmatch(line, capfd.readouterr().err)
    assert native.load() is library and len(calls()) == 2

    monkeypatch.setattr(native, "_ended", None)  # as a new process: found without compiling, a lock or a word
    monkeypatch.setattr(cache, "_alone", None)
    assert native.load().path == library.path and len(calls()) == 2 and not capfd.readouterr().err
    expected = {"state": "built", "instruction_set": "tiny", "compiler": library.compiler}
    assert expected.items() <= native.status().items()
    assert not list(cache.folder().glob("build-*"))


@needs_compiler
def test_nothing_is_said_where_printed_text_is_compared(tiny, capfd, monkeypatch):
    monkeypatch.setenv("OPLAB_STABLE", "1")
    assert native.load().instruction_set == "tiny" and not capfd.readouterr().err


HANDLER = f"""
#include "xla/ffi/api/c_api.h"
{EXPORT} const char* oplab_instruction_set() {{ return "tiny"; }}
{EXPORT} int oplab_takes_bfloat16() {{ return 0; }}
{EXPORT} XLA_FFI_Error* OplabSeven(XLA_FFI_CallFrame* frame) {{
  for (auto* x = frame->extension_start; x; x = x->next)
    if (x->type == XLA_FFI_Extension_Metadata) {{
      auto* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(x)->metadata;
      metadata->api_version.major_version = 0;
      metadata->api_version.minor_version = 1;
      return nullptr;
    }}
  if (frame->stage == XLA_FFI_ExecutionStage_EXECUTE)
    *static_cast<int*>(static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0])->data) = 7;
  return nullptr;
}}
"""


@needs_compiler
def test_xla_calls_what_was_built(recipe):
    import jax

    (recipe.sources / "entry.cc").write_text(HANDLER)
    native._load(replace(recipe, include=Path(jax.ffi.include_dir())), {"oplab_seven": "OplabSeven"})
    seven = jax.ffi.ffi_call("oplab_seven", jax.ShapeDtypeStruct((), "int32"))
    with jax.default_device(jax.devices("cpu")[0]):
        assert int(jax.jit(lambda: seven())()) == 7


@needs_compiler
def test_a_handler_that_is_missing_is_named(tiny, monkeypatch):
    monkeypatch.undo()
    why = refusal(lambda: native._load(tiny, {"oplab_seven": "OplabSeven"}))
    assert "XLA does not take the native library" in why and "has no OplabSeven" in why


@needs_compiler
def test_several_threads_build_once(tiny, calls):
    found = []
    threads = [threading.Thread(target=lambda: found.append(native.load())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1 and len(calls()) == 2


CHILD = """
import sys
from pathlib import Path
from oplab.native import build, cache
include, sources = map(Path, sys.argv[1:])
unit = build.Unit("part.cc", "tiny", ('-DSET="tiny"',))
print(cache.obtain(build.Recipe(include, sources, (unit,), build.ENTRY, ("-O0",)))[1].name)
"""


@needs_compiler
def test_two_processes_build_once_and_both_have_it(recipe, calls):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SLEEP": "0.5"}
    command = [sys.executable, "-c", CHILD, str(recipe.include), str(recipe.sources)]
    both = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)]
    out, err = zip(*[child.communicate(timeout=120) for child in both])
    assert out[0] == out[1] != "" and len(calls()) == 2
    assert sorted(text.count("building") for text in err) == [0, 1]


def test_importing_writes_nothing(tmp_path):
    places = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "OPLAB_CACHE"), str(tmp_path))
    env = {**os.environ, **places, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", "import oplab.native"], env=env, cwd=tmp_path, timeout=120)
    assert done.returncode == 0 and not list(tmp_path.iterdir())


# The key


COMPILER = compilers.Compiler(("c++",), "c++ 1", "c++ 1")


def changed(recipe, what):
    if what == "a source":
        (recipe.sources / "part.cc").write_text(PART + "\n")
    elif what == "a header":
        (recipe.sources / "tiny.h").write_text("#pragma once \n")
    elif what == "XLA's header":
        (recipe.include / build.HEADER).write_text("// version 2\n")
    elif what == "a flag":
        return replace(recipe, flags=("-O1",))
    elif what == "a unit":
        return replace(recipe, units=(build.Unit("part.cc", "tiny"),))
    return recipe


@pytest.mark.parametrize("what", ["a source", "a header", "XLA's header", "a flag", "a unit"])
def test_the_key_changes_with(what, recipe):
    before = build.key(recipe, COMPILER)
    assert build.key(changed(recipe, what), COMPILER) != before


def test_the_key_changes_with_the_compiler_and_the_processor(recipe, monkeypatch):
    keys = {build.key(recipe, COMPILER), build.key(recipe, replace(COMPILER, identity="c++ 2"))}
    monkeypatch.setattr(build.platform, "machine", lambda: "another")
    assert len(keys | {build.key(recipe, COMPILER)}) == 3


def test_the_key_changes_with_nothing_else(recipe):
    before = build.key(recipe, COMPILER)
    (recipe.sources / "part.pyc").write_text("x")
    os.utime(recipe.sources / "part.cc", (0, 0))
    assert build.key(replace(recipe), replace(COMPILER, name="another name")) == before
    assert re.fullmatch(r"[0-9a-f]{20}", before)


# The compiler


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(compilers, "_conda", list)
    monkeypatch.setattr(compilers, "_zig", list)


def test_no_compiler(tiny, no_compiler):
    assert "no C++ compiler was found" in refusal()
    found = native.status()
    assert found["state"] == "unavailable" and "no C++ compiler" in found["reason"] and found["cure"]


@pytest.mark.parametrize("command", ["no-such-compiler", sys.executable])
def test_a_wrong_cxx_is_named(tiny, monkeypatch, command):
    monkeypatch.setenv("CXX", command)
    why = refusal()
    assert why.startswith(f"CXX names {command}, which does not work here (") and "unset it" in why


def test_microsofts_compiler_in_cxx_is_passed_over(monkeypatch):
    for name in ("cl", "cl.exe", "CL.EXE"):
        monkeypatch.setenv("CXX", name)
        assert compilers.wanted() == []


@pytest.mark.parametrize("text, command", [
    ("g++", ["g++"]), ("ccache g++", ["ccache", "g++"]), ("g++ 'open", ["g++ 'open"]), ("", [])])
def test_what_cxx_may_say(monkeypatch, text, command):
    monkeypatch.setenv("CXX", text)
    assert compilers.wanted() == command


@pytest.mark.parametrize("version, name", [
    ("g++ (Debian 12.2.0-14) 12.2.0\nCopyright (C) Free Software Foundation, Inc.", "g++ 12.2.0"),
    ("x86_64-conda-linux-gnu-c++ (conda-forge gcc 13.3.0-1) 13.3.0\nFree Software Foundation", "g++ 13.3.0"),
    ("Debian clang version 14.0.6\nTarget: x86_64-pc-linux-gnu", "clang++ 14.0.6"),
    ("Apple clang version 15.0.0 (clang-1500.3.9.4)\nTarget: arm64-apple-darwin23.6.0", "clang++ 15.0.0"),
    ("a compiler of one's own", "c++"),
])
def test_what_a_compiler_is_called(version, name):
    assert compilers._name("c++", version) == name


@needs_compiler
def test_one_that_cannot_compile_is_passed_over(tiny, monkeypatch, tmp_path):
    broken = tmp_path / "bin" / "c++"
    broken.parent.mkdir()
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && exec echo c++ 99.9\necho error: lost >&2; exit 1\n')
    broken.chmod(0o755)
    monkeypatch.setattr(compilers, "_conda", list)
    monkeypatch.setenv("PATH", f"{broken.parent}{os.pathsep}{os.environ['PATH']}")
    assert next(compilers.candidates()).name == "c++ 99.9" != native.load().compiler
    monkeypatch.setattr(compilers, "candidates", lambda: [compilers._ask([str(broken)])])
    assert "c++ 99.9 does not work here (error: lost)" in refusal(lambda: cache.choose(tiny))
    monkeypatch.setattr(compilers.tempfile, "tempdir", str(tmp_path / "gone"))
    assert "no temporary folder to try it in" in refusal(lambda: cache.choose(tiny))


@needs_compiler
def test_condas_comes_first_and_zig_last(monkeypatch, tmp_path):
    conda = tmp_path / "bin" / "x86_64-conda-linux-gnu-c++"
    conda.parent.mkdir()
    conda.symlink_to(REAL)
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    zig = tmp_path / "ziglang"
    zig.mkdir()
    (zig / "__main__.py").write_text("import sys; print('clang version 22.1.8'); sys.exit('-o' in sys.argv)")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = list(compilers.candidates())
    assert str(conda) in [compiler.command[0] for compiler in found]
    assert found[-1].is_zig and found[-1].name == "zig's clang++ 22.1.8" and not compilers.why_not(found[-1])
    assert not any(compiler.is_zig for compiler in found[:-1])
    assert compilers.cure() == "conda install -c conda-forge cxx-compiler"
    # Alone of all, zig would compile for the processor at hand.
    assert "-mcpu=baseline" in build._flags(build.Recipe(tmp_path, units=()), found[-1])
    assert "-mcpu=baseline" not in build._flags(build.Recipe(tmp_path, units=()), found[0])


# What can go wrong


def test_switched_off_and_on_again(tiny, monkeypatch, no_compiler):
    monkeypatch.setenv("OPLAB_NATIVE", "0")
    assert refusal() == "switched off by OPLAB_NATIVE=0"
    assert native.status()["cure"] == "unset OPLAB_NATIVE"
    monkeypatch.setenv("OPLAB_NATIVE", "1")
    assert "no C++ compiler" in refusal()


@needs_compiler
def test_a_source_that_does_not_compile_is_tried_once(tiny, calls, capfd):
    (tiny.sources / "part.cc").write_text("int f() { return }\n")
    why = refusal()
    log = cache.folder() / "build.log"
    assert "cannot compile part.cc for tiny" in why and "error: expected" in why and str(log) in why
    assert "part.cc" in log.read_text() and capfd.readouterr().err.endswith(" failed\n")
    assert refusal() == why == native.status()["reason"] and len(calls()) == 1
    assert not list(cache.folder().glob("attention-*"))


@needs_compiler
def test_an_entry_that_does_not_compile_or_link(tiny, calls):
    (tiny.sources / "entry.cc").write_text("int f() { return }\n")
    assert "cannot compile entry.cc" in refusal(lambda: cache.obtain(tiny))
    (tiny.sources / "entry.cc").write_text(ENTRY)
    assert "cannot link the library" in refusal(lambda: cache.obtain(replace(tiny, units=2 * tiny.units)))


@needs_compiler
def test_an_optional_unit_may_fail_and_the_entry_is_told(recipe):
    (recipe.sources / "entry.cc").write_text(ENTRY + "#ifndef OPLAB_NO_NEWER\n#error not told\n#endif\n")
    newer = build.Unit("part.cc", "newer", ("--no-such-flag",), optional=True)
    _, path = cache.obtain(replace(recipe, units=(*recipe.units, newer)))
    assert cache.intact(path)


def test_a_cache_that_cannot_be_written(tiny, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("OPLAB_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(compilers, "candidates", lambda: [COMPILER])
    monkeypatch.setattr(compilers, "why_not", lambda compiler: "")
    why = refusal()
    assert f"the cache folder {tmp_path / 'file'} cannot be written (" in why and "OPLAB_CACHE" in why


@needs_compiler
@pytest.mark.parametrize("size", [0, 100, -1])
def test_a_truncated_library_is_built_again(tiny, calls, monkeypatch, size):
    path = native.load().path
    fresh = path.with_suffix(".half")  # not written in place: this process has the whole one in memory
    fresh.write_bytes(path.read_bytes()[:size])
    os.replace(fresh, path)
    assert not cache.intact(path) and native.status()
    monkeypatch.setattr(native, "_ended", None)
    assert native.load().instruction_set == "tiny" and cache.intact(path) and len(calls()) == 4


@needs_compiler
def test_a_library_of_another_system_is_built_again_once(tiny, calls, monkeypatch):
    real, tries = native.open_library, []

    def refused_at_first(path, compiler):
        tries.append(path)
        if len(tries) == 1:
            raise OSError("version `GLIBC_9.9' not found")
        return real(path, compiler)

    monkeypatch.setattr(native, "open_library", refused_at_first)
    assert native.load().instruction_set == "tiny" and len(calls()) == 4


@needs_compiler
def test_a_library_that_never_loads(tiny, calls):
    (tiny.sources / "entry.cc").write_text("void nothing() {}\n")
    why = refusal()
    assert "cannot be loaded" in why and "does not say its instruction set" in why and len(calls()) == 4


@needs_compiler
def test_the_newest_few_are_kept(recipe, calls):
    place = cache.folder()
    place.mkdir()
    for age in range(1, 7):
        for ending in (build.suffix(), ".json"):
            old = place / f"attention-{age}{ending}"
            old.touch()
            os.utime(old, (time.time() - 3600 * age,) * 2)
    for name, age in (("build-dead", 2 * 3600), ("build-alive", 0)):
        (place / name / "x").mkdir(parents=True)
        os.utime(place / name, (time.time() - age,) * 2)
    _, path = cache.obtain(recipe)
    kept = {"attention-1", "attention-2", "attention-3", path.stem}
    files = {name + ending for name in kept for ending in (build.suffix(), ".json")}
    assert {left.name for left in place.glob("attention-*")} == files
    assert [left.name for left in place.glob("build-*")] == ["build-alive"]


@needs_compiler
def test_a_drive_without_locks(recipe, monkeypatch):
    def refused(self, timeout):
        raise NotImplementedError("no flock here")

    monkeypatch.setattr(cache.FileLock, "acquire", refused)
    assert cache.intact(cache.obtain(recipe)[1])


def test_a_processor_that_nothing_is_written_for(monkeypatch):
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    assert refusal() == "native code is written for x86_64 and arm64 processors, not for riscv64"


# The real sources


@pytest.mark.parametrize("machine", build.UNITS)
def test_every_source_in_the_table_is_there(machine):
    names = {unit.source for unit in (*build.UNITS[machine], build.ENTRY)}
    assert not [name for name in names if not (build.SOURCES / name).is_file()]
    objects = [unit.name for unit in (*build.UNITS[machine], build.ENTRY)]
    assert len(objects) == len(set(objects))


def test_an_instruction_set_that_there_is_not_is_named_and_not_replaced(monkeypatch):
    monkeypatch.setenv("OPLAB_ISA", "AVX9")
    with pytest.raises(native.Unavailable, match="OPLAB_ISA names 'AVX9', which is none of amx, avx512"):
        native.load()
    assert native.status()["cure"] == "unset OPLAB_ISA"


@pytest.mark.parametrize("no", ["0", "off", "No"])
def test_who_switched_it_off_is_told_so(monkeypatch, no):
    monkeypatch.setenv("OPLAB_NATIVE", no)
    with pytest.raises(native.SwitchedOff, match=f"switched off by OPLAB_NATIVE={no}"):
        native.load()
