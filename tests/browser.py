"""A page open in headless Chromium, driven over its DevTools socket: opened, clicked, typed into, read."""

import contextlib
import json
import shutil
import subprocess
import time

import pytest

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--window-size=1366,768", "--remote-debugging-port=0"]
COMPLAINTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded",
              "Page.javascriptDialogOpening")


def chromium():
    """The path of a Chromium on this machine, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One tab. `errors` collects what the console and the network say; a good page says nothing."""

    def __init__(self, program, folder):
        websocket = pytest.importorskip("websocket", reason="websocket-client comes with JupyterLab")
        command = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        number, path = self.port(folder / "DevToolsActivePort")
        address = f"ws://127.0.0.1:{number}{path}"
        self.socket = websocket.create_connection(address, suppress_origin=True, timeout=60)
        self.session, self.count, self.errors = None, 0, []
        self.session = self.attach("page")
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def port(self, file):
        deadline = time.monotonic() + 30
        while not (file.exists() and file.read_text().count("\n")):
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.process.kill()
                pytest.skip("Chromium does not start here")
            time.sleep(0.05)
        return file.read_text().split("\n")

    def attach(self, kind):
        """A session with the first target of a kind, once there is one."""
        deadline = time.monotonic() + 20
        while not (found := [t["targetId"] for t in self.call("Target.getTargets")["targetInfos"]
                             if t["type"] == kind]):
            assert time.monotonic() < deadline, f"the browser shows no {kind}"
            time.sleep(0.03)
        return self.call("Target.attachToTarget", targetId=found[0], flatten=True)["sessionId"]

    def call(self, method, **params):
        """Ask the browser for something and wait for its answer; events that come between are noted."""
        self.count += 1
        number = self.count
        message = {"id": number, "method": method, "params": params}
        self.socket.send(json.dumps(message | ({"sessionId": self.session} if self.session else {})))
        while True:
            got = json.loads(self.socket.recv())
            if got.get("id") == number:
                assert "error" not in got, got
                return got["result"]
            self.note(got.get("method", ""), got.get("params", {}))

    def note(self, event, what):
        url = what.get("request", {}).get("url", "")
        if event in COMPLAINTS:
            self.errors.append(what)
        elif event == "Network.requestWillBeSent" and not url.startswith(("file:", "about:")):
            self.errors.append(url)

    def open(self, path, address=""):
        """Open a file, and wait until its script has put up the panes."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=path.as_uri() + address)
        self.until("document.querySelectorAll('#view-hlo .line, iframe').length")

    @contextlib.contextmanager
    def frame(self):
        """Inside, everything is done in the sandboxed frame of the page, which is a process of its own."""
        outer = self.session
        self.session = self.attach("iframe")
        for domain in ("Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        yield
        self.session = outer

    def run(self, script):
        """The value of an expression."""
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def until(self, script):
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + 20
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"never true: {script}; {self.errors}"
            time.sleep(0.03)
        return value

    def mouse(self, element, *kinds):
        x, y = self.run(f"(() => {{ const box = {element}.getBoundingClientRect();"
                        " return [box.left + 60, box.top + box.height / 2]; })()")
        for kind in kinds:
            moved = kind == "mouseMoved"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="none" if moved else "left",
                      clickCount=0 if moved else 1)

    def click(self, element):
        self.mouse(element, "mouseMoved", "mousePressed", "mouseReleased")

    def press(self, key, text=""):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait(20)
