"""Names that a person, a file or a compiler could hand to a display, and that must come out as text.

    from hostile import NAMES      {"markup 3": "<img src=x onerror=...>", ...}, some two hundred

Built kind by kind, so that a new trick is one more word. What runs in spite of all sets `window.pwned`, opens
a dialog or asks the network, which the browser tests (see `browser.py`) notice.
"""

RUN = "window.pwned=1"
URL = "https://example.invalid/x"  # never resolves; a page that asks for it has failed

# Every way to begin an element, an attribute or a script that some display once let through
MARKUP = [
    f"<script>{RUN}</script>", f"</script><script>{RUN}</script>", f"<ScRiPt>{RUN}</sCrIpT>",
    f"<img src=x onerror={RUN}>", f"<img/src=x/onerror={RUN}>", f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script>", f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<body onload={RUN}>", f"<details open ontoggle={RUN}>", f"<iframe src=javascript:{RUN}>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'>", f"<object data={URL}>", f"<embed src={URL}>",
    f"<link rel=stylesheet href={URL}>", f"<link rel=prefetch href={URL}>", f"<base href={URL}>",
    f"<meta http-equiv=refresh content=0;url={URL}>",
    f"<form action={URL}><input autofocus onfocus={RUN}>", f"<video><source onerror={RUN}></video>",
    f"<a href=javascript:{RUN}>a</a>", f"<math><mi xlink:href={URL}>", f"<table background={URL}>",
    f"<style>*{{background:url({URL})}}</style>", "<template><b>", "<noscript><b>", "</noscript><b>",
    "</title><b>", "</style><b>", "</textarea><b>", "</pre><b>", "</td></tr></table><b>", "</iframe><b>",
    "<!--", "-->", "<!--<script>", "<![CDATA[", "]]>", "<?php 1 ?>", "<!DOCTYPE html>", "<b", "</", "<>",
    "< b >", "<\x00b>",
]
QUOTES = [
    "'", '"', "`", "''", '""', '"""', "'''", "\\", "\\'", '\\"', "a\"b'c`d", f"' onmouseover='{RUN}",
    f'" onmouseover="{RUN}', f"`onmouseover={RUN}", f"x' autofocus onfocus='{RUN}",
    f'"><img src=x onerror={RUN}>', f"'><svg onload={RUN}>",
]
ENTITIES = [
    "&", "&amp;", "&lt;b&gt;", "&lt;b&gt;&amp;", "&#60;b&#62;", "&#x3c;script&#x3e;", "&nbsp;",
    "&unknown;", "&lt", "%3Cb%3E", "\\u003cb\\u003e", "\\x3cb\\x3e", "+ADw-script+AD4-",
]
ADDRESSES = [
    f"javascript:{RUN}", f"JaVaScRiPt:{RUN}", f" javascript:{RUN}", f"java\tscript:{RUN}",
    f"data:text/html,<script>{RUN}</script>", f"vbscript:{RUN}", URL, "//example.invalid/x",
    "file:///etc/passwd", "../../../../etc/passwd", "..\\..\\windows", "#view=fates", "#hlo:dot.1",
    "?x=1&y=2", "con.txt", "C:\\x:y", "/dev/null", ".", "..", "~",
]
TEMPLATES = [
    "$policy", "${script}", "$$", "$", "{{x}}", "{% x %}", "{0}", "{}", "{x!r}", "{", "}", "%s", "%(x)s",
    "%", "%%", "%n", "<%= 1 %>", "#{1}", "@{x}", "`${window.pwned=1}`", "[[x]]", "*ngIf", "\\1", "\\g<0>",
    "[a-z", "(?P<x>", "**", "__class__", "f'{1}'",
]
PLOTS = [
    "$x$", "$\\frac{$", "$\\frac{1}{2}$", "$_$", "$^$", "x_1^2", "\\mathbf{x}", "$\\", "a$b", "$$x$$",
    "\\$", "_nolegend_", "_x", "\\input{/etc/passwd}", "{\\huge x}",
]
JSON = [
    "{", "[1", '{"a":1}', "null", "true", "NaN", "Infinity", "-0", "1e999", "0x10", "007", "__proto__",
    "constructor", "toString", "hasOwnProperty", "\u2028", "\u2029", "\\u2028", "\\ud800", "\\", "\\n",
    "-1", "undefined",
]
STYLES = [
    "red;background:url(//example.invalid)", "}*{display:none}", "expression(1)",
    "@import '//example.invalid'", "/*", "*/", "position:fixed;inset:0", "--x:1", "\\65", "!important",
]
TABLES = [
    "=1+1", "=HYPERLINK(\"//example.invalid\")", "+1", "-1+1", "@SUM(1)", "|", "a|b", ",", ";", "\ta",
    "a,b\"c", "# a", "- [ ] a",
]
TERMINAL = [
    "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x1b]8;;https://example.invalid\x07x\x1b]8;;\x07", "a\rb",
    "a\bb", "a\x0bb", "a\x0cb",
]
CONTROL = [
    "nul\x00nul", "bell\x07", "\x00", "\x01\x02\x03", "\x1f", "\x7f", "\x80\x9f", "\x85next", "a\nb",
    "a\r\nb", "\n", " ", "\t", "",
]
HIDDEN = [
    "\u202eright to left\u202c", "\u202dleft\u202c", "\u202aembed", "\u2066isolate\u2069", "\u2067rli",
    "\u2068fsi", "\u200e", "\u200f", "\u061c", "a\u200bb", "a\u200cb", "a\u2060b", "a\u00adb", "\ufeffbom",
    "\u180e", "\u2063", "\ufff9note\ufffb", "\u3164", "\ufffc", "\ufffd", "\uffff",
]
SCRIPTS = [
    "行列积", "ソフトマックス", "행렬", "مصفوفة", "עברית", "Матрица",
    "ταχύτητα", "मैट्रिक्स", "ไทย", "é", "e\u0301",
    "İi", "ß", "ﬁ", "🙂", "👩\u200d💻", "🇫🇷", "☃\ufe0f", "𝒙",
    "a" + "\u0301" * 200, "\U000e0041tag", "％＜ｂ＞",
    "‹b›", "ʼ",
]
HALVES = [  # half a character: no such text can be written as UTF-8
    "\ud800lone", "lone\udfff", "\udc00\ud800", "a\ud83d", "\ude00b", "\udcff",
]
LONG = [
    "x" * 5_000, "x" * 100_000, "<" * 3_000, "&" * 3_000, "a " * 3_000, "行" * 20_000, "\u202e" * 1_000,
    "(" * 2_000, "$" * 1_000, "\n" * 300,
]

KINDS = {"markup": MARKUP, "quotes": QUOTES, "entities": ENTITIES, "addresses": ADDRESSES,
         "templates": TEMPLATES, "plots": PLOTS, "json": JSON, "styles": STYLES, "tables": TABLES,
         "terminal": TERMINAL, "control": CONTROL, "hidden": HIDDEN, "scripts": SCRIPTS, "halves": HALVES,
         "long": LONG}
NAMES = {f"{kind} {n}": name for kind, names in KINDS.items() for n, name in enumerate(names)}
