"""What the passes of XLA do, in a sentence each: their names alone tell only those who wrote them.

After the classes' own comments in openxla/xla, under `xla/hlo/transforms`, `xla/service` and
`xla/service/cpu`. A pass that is not listed here has no sentence rather than a guessed one. They are short,
since the page shows each on one line.
"""

WORDS = {
    "(from StableHLO)": "The program as JAX handed it over.",
    "(scheduled)": "The program as it is run, its instructions in their order.",
    "algsimp": "Replaces instructions by cheaper equal ones, such as x * 1 by x.",
    "fusion": "Puts an instruction into the kernel of its reader: a trip to memory less.",
    "fusion-wrapper": "Wraps what was left alone in a fusion too: one code generator for all.",
    "cse": "Keeps one of several equal instructions (common subexpressions).",
    "dce": "Removes instructions that nobody reads (dead code elimination).",
    "call-inliner": "Puts the body of a called function in the place of the call.",
    "flatten-call-graph": "Gives each caller its own copy of a function that several call.",
    "propagate-call-metadata": "Notes in a called function's instructions who calls it.",
    "transpose-folding": "Lets a product read its operand transposed, without transposing it first.",
    "reshape-decomposer": "Splits a reshape that moves data into a copy and a free reshape.",
    "reshape-mover": "Moves reshapes past elementwise instructions, to meet and cancel out.",
    "layout-assignment": "Decides for each array which axis is contiguous in memory.",
    "constant_folding": "Computes while compiling what is known while compiling.",
    "copy-insertion": "Adds copies where an array would be overwritten while still needed.",
    "adding_copies_to_resolve_interference": "Adds copies where two live values would share a buffer.",
    "removing_unnecessary_copies": "Takes copies out again that turn out not to be needed.",
    "adding_special-case_copies": "Adds copies at the edges, as of a parameter that is also a result.",
    "dot-library-rewriter": "Hands products, and what follows them, to a library's kernels.",
    "tree_reduction_rewriter": "Splits a long sum into sums of short pieces, which round less.",
    "reduce-window-rewriter": "Turns a running sum, quadratic as written, into a tree of short ones.",
    "simplify-while-loops": "Removes loops that run never or once, and what loops carry in vain.",
    "while-loop-trip-count-annotator": "Notes how often a loop runs, where that can be told.",
    "while-loop-constant-sinking": "Moves a constant that a loop carries along into its body.",
    "while-loop-invariant-code-motion": "Moves out of a loop what is the same in every round.",
    "small-while-loop-hoisting": "Turns a small loop into a function: one kernel does all its rounds.",
    "simplify-conditional": "Removes branches that are never taken.",
    "conditional-canonicalizer": "Makes every conditional's result a tuple.",
    "gather_simplifier": "Rewrites a gather into a plainer one between transposes and reshapes.",
    "scatter_expander": "Turns a scatter into a loop that writes one update after the other.",
    "convolution-canonicalization": "Reshapes a convolution so that Eigen's fast one takes it.",
    "float-normalization-bf16": "Computes in float32 what the processor cannot in bfloat16.",
    "dynamic-dimension-simplifier": "Simplifies what is computed from the sizes of dimensions.",
    "cse_barrier_expander": "Removes optimisation barriers: nothing keeps instructions apart now.",
    "zero_sized_hlo_elimination": "Replaces arrays without elements by constants.",
    "tuple-simplifier": "Removes tuples that are taken apart as soon as they are made.",
    "simplify-sorts": "Removes operands of a sort that nobody reads.",
    "logistic-expander": "Writes the logistic function out as 1 / (1 + exp(-x)).",
    "cholesky_expander": "Writes a Cholesky factorisation out as loops of simpler instructions.",
    "dot_decomposer": "Brings every product into the form of batched matrix products.",
}


def does(name: str) -> str:
    """The sentence on a pass, or "" for one that has none here."""
    return WORDS.get(name, "")
