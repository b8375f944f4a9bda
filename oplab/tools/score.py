"""The score: every figure that oplab promises, measured on the golden set, side by side in one run.

    python -m oplab.tools.score                       every figure
    python -m oplab.tools.score provenance fates      some of them
    python -m oplab.tools.score provenance softmax    on some programs only
    python -m oplab.tools.score cost --full           with the 200-layer transformer

One table per figure, its target beside what was measured. The exit status is 1 when a figure is missed.
"""

import argparse
import sys

import jax

from oplab.tools import certain, measured
from oplab.tools.golden import golden

FIGURES = {"provenance": certain.provenance, "same": certain.same, "fates": certain.fates,
           "kernels": certain.kernels,
           "time": measured.times, "cost": measured.cost, "memory": measured.memory}


def main(argv=None):
    """Print the tables asked for. Returns 0 when every figure is reached, 1 when one is missed."""
    asked = read_arguments(argv)
    figures = [name for name in FIGURES if name in asked.names] or list(FIGURES)
    programs = [name for name in golden() if name in asked.names] or list(golden())
    print(f"JAX {jax.__version__}, Python {sys.version.split()[0]}, {jax.default_backend()}")
    missed = []
    for figure in figures:
        table = FIGURES[figure](programs, **({"full": asked.full} if figure == "cost" else {}))
        print(f"\n{figure}\n{readable(table)}", flush=True)
        if not table["ok"].all():
            missed.append(figure)
    print(f"\nmissed: {', '.join(missed)}" if missed else "\nall reached")
    return int(bool(missed))


def read_arguments(argv):
    parser = argparse.ArgumentParser(prog="python -m oplab.tools.score", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=(
        f"figures ({', '.join(FIGURES)}) and programs ({', '.join(golden())}); all when none is named"))
    parser.add_argument("--full", action="store_true", help="cost of the 200-layer transformer too (minutes)")
    asked = parser.parse_args(argv)
    unknown = sorted(set(asked.names) - set(FIGURES) - set(golden()))
    if unknown:
        parser.error(f"no figure and no program is called {', '.join(unknown)}; --help lists the names")
    return asked


def readable(table):
    """The table as text, `ok` as a word, counts without decimals, nothing where nothing was counted."""
    shown = table.assign(ok=["yes" if ok else "NO" for ok in table["ok"]]).convert_dtypes()
    return shown.astype(object).where(shown.notna(), "").to_string(index=False)


if __name__ == "__main__":
    sys.exit(main())
