"""How large the linked page is and how fast it answers, measured in a real browser on the golden set.

    python -m oplab.tools.page_figures                   the twelve golden programs
    python -m oplab.tools.page_figures softmax --full    one of them, and the 200-layer transformer

Needs `playwright` and a Chromium on this machine; no browser is downloaded. First paint is when the panes
with their lines stand on the screen, counted from the start of navigation. A hover is counted from the mouse
event to the frame that shows all relatives in all panes, the page's own moment of rest included; each of some
thirty lines in five panes is tried three times. `hover_ms` is the slowest of all, and it is what counts;
`typical_ms` the slowest line's median, which a busy machine disturbs less. The page is the one that people
save: of a walk that was executed. The exit status is 1 when a figure is missed.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

import pandas as pd

import oplab
from oplab.tools.golden import deep, golden, program
from oplab.tools.score import readable

LIMITS = {False: (2.0, 1.0, 100.0), True: (12.0, 3.0, 100.0)}  # deep or not: MB, s to paint, ms to hover
PANES, DEPTHS = ("script", "jaxpr", "stablehlo", "hlo", "time"), (0, 0.2, 0.4, 0.6, 0.8, 1)
SIZE = {"width": 1366, "height": 768}

PAINTED = """() => new Promise((done) => {
  const look = () => {
    const mark = performance.getEntriesByName("shown")[0];
    mark ? done(mark.startTime) : requestAnimationFrame(look);
  };
  look();
})"""

# To the frame after the one in which the foot of the page names the line.
HOVER = """([pane, depth]) => new Promise((done) => {
  const view = document.querySelector(`#view-${pane}`);
  view.scrollTop = depth * (view.scrollHeight - view.clientHeight);
  setTimeout(() => {
    const frame = view.getBoundingClientRect();
    const rows = [...view.querySelectorAll(".line.row")].filter((line) => {
      const box = line.getBoundingClientRect();
      return box.top >= frame.top && box.bottom <= frame.bottom;
    });
    const line = rows[rows.length >> 1];
    if (!line) return done(null);
    const said = document.querySelector("#said");
    let start = 0;
    const watch = new MutationObserver(() => {
      watch.disconnect();
      requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
    });
    watch.observe(said, { childList: true });
    start = performance.now();
    line.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
  }, 60);
})"""


def main(argv=None):
    """Print one row per program. Returns 0 when every figure is reached, 1 when one is missed."""
    parser = argparse.ArgumentParser(prog="python -m oplab.tools.page_figures",
                                     description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(golden())}; all when none")
    parser.add_argument("--full", action="store_true", help="the 200-layer transformer too (a minute)")
    asked = parser.parse_args(argv)
    if unknown := sorted(set(asked.names) - set(golden())):
        parser.error(f"no program is called {', '.join(unknown)}; --help lists the names")
    table = figures([*(asked.names or golden()), *(deep() if asked.full else ())])
    print(readable(table))
    print("\nall reached" if table["ok"].all() else "\nmissed")
    return int(not table["ok"].all())


def figures(names):
    """program, megabytes, first_paint_s, hover_ms, typical_ms, hovers, limits, ok: one row per program."""
    sync_playwright, chromium = _browser()
    rows = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name in names:
            function, args = program(name)
            file = Path(folder) / f"{name}.html"
            oplab.walk(function, *args).execute(5).save(file)
            rows.append({"program": name, **_measure(browser, file, LIMITS[name in deep()])})
        browser.close()
    return pd.DataFrame(rows)


def _browser():
    """(sync_playwright, path of a Chromium), or one sentence on what is missing."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if not sync_playwright or not chromium:
        missing = "a Chromium on this machine" if sync_playwright else "playwright (pip install playwright)"
        raise SystemExit(f"page_figures expects {missing}, to open the pages in: install it and run again.")
    return sync_playwright, chromium


def _measure(browser, file, limits):
    size, (most_mb, most_s, most_ms) = file.stat().st_size / 1e6, limits
    tab = browser.new_page(viewport=SIZE)
    tab.goto(file.as_uri())
    painted = tab.evaluate(PAINTED) / 1e3
    tab.wait_for_timeout(1000)  # until the kernels' code, unpacked after the first paint, is there too
    rounds = [{(pane, depth): tab.evaluate(HOVER, [pane, depth]) for pane in PANES for depth in DEPTHS}
              for _ in range(3)]
    tab.close()
    hovers = [times for place in rounds[0] if None not in (times := [r[place] for r in rounds])]
    slowest = max(map(max, hovers))
    return {"megabytes": round(size, 2), "first_paint_s": round(painted, 2), "hover_ms": round(slowest),
            "typical_ms": round(max(map(median, hovers))),
            "hovers": len(hovers), "limits": f"{most_mb:g} MB, {most_s:g} s, {most_ms:g} ms",
            "ok": size <= most_mb and painted < most_s and slowest < most_ms}


if __name__ == "__main__":
    sys.exit(main())
