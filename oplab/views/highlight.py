"""Syntax colours for what the stages print: Python by Pygments, the compiler's own languages by small tables.

One table of patterns for each language serves twice. `lexer` makes a Pygments lexer of it, and the page takes
the table along and colours a line when it comes into view: a model's kernels are megabytes of assembly, of
which a reader sees forty lines. So the patterns keep to what Python and JavaScript spell alike, hold no
groups, and never look beyond one line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from pygments.lexer import Lexer, RegexLexer
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, String, Token, Whitespace, _TokenType

# The short class names that the page's style sheet knows, and the Pygments tokens they stand for.
CLASSES = {"t": Keyword.Type, "k": Keyword, "o": Name.Function, "v": Name.Variable, "a": Name.Attribute,
           "n": Number, "s": String, "c": Comment, "": Token.Text}
LONGEST = 3000  # characters of a line that are coloured; the page cuts longer lines there and says so

_STRING = ("s", r'"(?:[^"\\]|\\.)*"')
_NUMBER = ("n", r"-?\b(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\b")
_WORD = ("", r"[A-Za-z_][\w.\-]*")  # what no other pattern took stays whole: none matches in its middle

# language -> (class, pattern), the first that fits wins. An empty class leaves the text plain.
PATTERNS: dict[str, tuple[tuple[str, str], ...]] = {
    # { lambda ; a:f32[8]. let  b:f32[] = reduce_sum[axes=(0,)] a  in (b,) }
    "jaxpr": (
        ("k", r"\b(?:lambda|let|in(?= \())\b"),  # a variable may be called "in" too
        ("t", r"(?:bool|key<\w+>|token|bf16|float8_\w+|[fiuc]\d+)\[[^\]]*\](?:\{[^}]*\})?"),
        ("a", r"\b[a-z_]\w*(?==)"),
        ("o", r"(?<== )[a-z_][\w\-]*"),
        _STRING, _NUMBER, _WORD),
    # %dot.1 = f32[8,8]{1,0} dot(%x.1, %w.1), lhs_contracting_dims={1}, metadata={op_name="..."}
    "hlo": (
        ("c", r"\bmetadata=\{[^{}]*\}|\bbackend_config=.*|/\*.*?\*/"),
        ("k", r"\b(?:ENTRY|ROOT|HloModule|FileNames|FunctionNames|FileLocations|StackFrames)\b"),
        ("t", r"\b(?:pred|token|bf16|[fsuc]\d+\w*)\[[^\]]*\](?:\{[^}]*\})?"),
        ("v", r"%[\w.\-]+"),
        ("a", r"\b[a-z_]\w*(?==)"),
        ("o", r"\b[a-z][a-z0-9\-]*(?=\()"),
        _STRING, _NUMBER, _WORD),
    # %3 = stablehlo.dot_general %1, %2, contracting_dims = [2] x [1] : (tensor<4x8xf32>) -> tensor<4x8xf32>
    "mlir": (
        ("c", r"//.*|\bloc\(.*?\)"),
        _STRING,
        ("t", r"\b(?:tensor|memref|vector|complex|tuple)<[^>]*>|\b(?:u?i\d+|f\d+\w*|bf16|index)\b"),
        ("v", r"[%@^][\w.$\-]+(?:#\d+)?"),
        ("k", r"\b(?:module|func\.func|func\.call|call|return|attributes|public|private|do|cond)\b"),
        ("o", r"\b[a-z_]\w*(?:\.[a-z_]\w*)+"),
        ("a", r"#?\b[A-Za-z_][\w.]*(?= ?=)"),
        _NUMBER, _WORD),
    # %18 = load <8 x float>, ptr %17, align 4
    "llvm": (
        ("c", r";.*|![\w.]+"),
        _STRING,
        ("v", r'[%@#](?:[\w.$\-]+|"[^"]*")'),
        ("t", r"\b(?:i\d+|float|double|half|bfloat|ptr|void|label|metadata)\b|<\d+ x \w+>"),
        ("k", r"\b(?:define|declare|attributes|source_filename|target|unnamed_addr|local_unnamed_addr)\b"),
        ("o", r"(?<== )(?:tail |musttail |notail )?[a-z]\w*|\b(?:store|br|ret|switch|call|unreachable)\b"),
        ("n", r"-?\b(?:0x[0-9a-fA-FHKLM]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b(?!:)"),
        _WORD),
    #   5d:  vmovups    ymm0, ymmword ptr [rbx + r9*4]
    "asm": (
        ("c", r"^ *[0-9a-f]+:|;.*"),
        ("k", r"^[\w.$]+:"),
        ("o", r"(?<=:  )[a-z.][\w.]*(?: [a-z]\w+(?=  ))?"),
        ("t", r"\b(?:[re]?[abcd]x|[abcd][lh]|[re]?[sd]il?|[re]?[sb]pl?|rip|r\d+[dwb]?)\b"
              r"|\b(?:[xyz]mm\d+|k[0-7]|[xwvqds]\d+)\b"),
        ("a", r"\b(?:(?:[xyzdqo]|[xyz]mm|t)?word|byte) ptr\b"),
        _NUMBER, _WORD),
    #   @%p1 ld.global.v4.f32  {%f1, %f2, %f3, %f4}, [%rd5+16];
    "ptx": (
        ("c", r"//.*|/\*.*?\*/"),
        _STRING,
        ("k", r"^[ \t]*\$?[A-Za-z_][\w$]*:"),
        ("v", r"%[A-Za-z_][\w.]*(?:<\d+>)?|\$L[\w$]*"),
        ("o", r"\b[a-z][a-z0-9_]*(?:(?:\.|::)[a-z0-9_]+)+|\b(?:ret|exit|bra|call|trap)\b"),
        ("t", r"\.(?:pred|[busf]\d+(?:x2)?|bf16(?:x2)?|tf32|e4m3|e5m2|v[248])\b"),
        ("k", r"\.[a-z_]+\b"),
        ("n", r"\b0[fFdD][0-9a-fA-F]+\b"),
        _NUMBER, ("", r"[A-Za-z_$][\w$]*")),
    #         /*0040*/          @!P0 LDG.E.128 R4, desc[UR4][R2.64+0x10] ;      /* 0x0000000402047981 */
    "sass": (
        ("c", r"//.*|/\*.*?\*/"),
        _STRING,
        ("k", r"^[ \t]*\.[A-Za-z_][\w.$]*:|^[ \t]*\.[a-z_]+\b"),
        ("v", r"\b(?:U?R\d+|U?RZ|U?P\d|U?PT|SRZ|SR_\w+|S?B\d+)(?:\.\w+)*\b|\.L_[\w.$]+"),
        ("o", r"\b[A-Z][A-Z0-9]*(?:\.\w+)*(?=[ ;])"),
        ("a", r"\b(?:desc|gdesc|tmem|cx?)(?=\[)"),
        _NUMBER, _WORD),
}

LANGUAGES = ("python", *PATTERNS)


@functools.cache
def lexer(language: str) -> Lexer:
    """The Pygments lexer of one of LANGUAGES."""
    if language == "python":
        return PythonLexer(stripnl=False, ensurenl=False)
    if language not in PATTERNS:
        raise ValueError(f"highlight expects one of {', '.join(LANGUAGES)}, got {language!r}.")
    rules = [(pattern, CLASSES[name]) for name, pattern in PATTERNS[language]]
    rules += [(r"\s+", Whitespace), (r".", Token.Text)]
    own = type(f"{language.title()}Lexer", (RegexLexer,),
               {"name": language, "flags": re.MULTILINE | re.ASCII, "tokens": {"root": rules}})
    return own(stripnl=False, ensurenl=False)


def spans(line: str, language: str) -> Iterator[tuple[str, str]]:
    """One line as (class, text), neighbours of one class joined. The texts joined are the line again."""
    name, text = "", line[LONGEST:]
    if text:
        yield from (*spans(line[:LONGEST], language), ("", text))
        return
    for token, piece in lexer(language).get_tokens(line):
        found = _class(token)
        if found != name and piece.strip():
            if text:
                yield name, text
            name, text = found, ""
        text += piece
    if text:
        yield name, text


def _class(token: _TokenType) -> str:
    """The short class of a Pygments token; Python has more kinds of them than the page has colours."""
    for name, known in CLASSES.items():
        if name and token in known:
            return name
    if token in Name.Builtin or token in Name.Class or token in Name.Decorator:
        return "o"
    return "k" if token in Token.Operator.Word else ""
