"""Writes requirements.lock anew: what pip resolves today on each supported Python, merged into one file.

    python tools/lock.py python3.11 python3.12 python3.13

Give one interpreter for each supported Python. Nothing is installed: pip only reports what it would install
for the dependencies and the `test` extra in pyproject.toml. Where the Pythons agree a package has one line,
where they do not it has one for each version, with a marker. Versions only: no addresses, no hashes.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Dependencies of our dependencies that are installed on another system than the one this script ran on.
# pip reports only what its own machine needs, so these are written by hand.
OTHER_SYSTEMS = [
    'appnope==1.0.0 ; sys_platform == "darwin"',  # ipykernel
    'colorama==0.4.6 ; sys_platform == "win32"',  # tqdm, ipython, pytest
    'pywinpty==3.1.2 ; sys_platform == "win32"',  # jupyter_server, terminado
]

HEADER = """\
# Written by tools/lock.py: every package that `make lab` and `make test` install, with its version.
# One file serves Python {}; where they differ, a marker says which line is whose.
"""


def wanted():
    """What pyproject.toml asks for, and the build backend that installs oplab itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["test"],
        *project["build-system"]["requires"],
    ]


def resolve(python, requirements):
    """('3.12', {name: version}): what pip would install under this interpreter."""
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    minor = subprocess.run([python, "-c", version], check=True, capture_output=True, text=True).stdout.strip()
    command = [python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    report = json.loads(subprocess.run([*command, *requirements], check=True, stdout=subprocess.PIPE).stdout)
    metadata = [item["metadata"] for item in report["install"]]
    return minor, {normal(entry["name"]): entry["version"] for entry in metadata}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def merge(resolved):
    """Lines of the lock file, from {minor: {name: version}}."""
    names = sorted(set().union(*resolved.values()))
    lines = list(OTHER_SYSTEMS)
    for name in names:
        versions = {minor: pins.get(name) for minor, pins in resolved.items()}
        if len(set(versions.values())) == 1:
            lines.append(f"{name}=={versions.popitem()[1]}")
            continue
        for version in sorted(set(versions.values()) - {None}):
            minors = [minor for minor in versions if versions[minor] == version]
            lines.append(f"{name}=={version} ; {marker(minors, list(versions))}")
    return sorted(lines, key=str.lower)


def marker(minors, all_minors):
    """The shortest marker that picks `minors`, given in rising order, out of `all_minors`."""
    if minors == all_minors[-len(minors):]:
        return f'python_version >= "{minors[0]}"'
    if minors == all_minors[: len(minors)]:
        return f'python_version < "{all_minors[len(minors)]}"'
    return " or ".join(f'python_version == "{minor}"' for minor in minors)


def main(pythons):
    if not pythons:
        sys.exit("Name one interpreter for each supported Python: python3.11 python3.12 python3.13")
    resolved = dict(resolve(python, wanted()) for python in pythons)
    resolved = {minor: resolved[minor] for minor in sorted(resolved, key=lambda m: int(m.split(".")[1]))}
    text = HEADER.format(", ".join(resolved)) + "\n".join(merge(resolved)) + "\n"
    (ROOT / "requirements.lock").write_text(text)
    print(f"requirements.lock: {len(text.splitlines()) - 2} lines for Python {', '.join(resolved)}")


if __name__ == "__main__":
    main(sys.argv[1:])
