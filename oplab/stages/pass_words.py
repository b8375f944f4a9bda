"""What the passes of XLA do, in a sentence each: their names alone tell only those who wrote them.

After the classes' own comments in openxla/xla, under `xla/hlo/transforms`, `xla/service` and
`xla/service/cpu`. A pass that is not listed here has no sentence rather than a guessed one.
"""

WORDS = {
    "(from StableHLO)": "The program as JAX handed it over.",
    "(scheduled)": "The program as it is run, its instructions in their order.",
    "algsimp": "Replaces instructions by cheaper ones with the same result, as in algebra: x * 1 by x.",
    "fusion": "Puts an instruction into the kernel of the one that reads it, so that its result need not"
    " go to memory.",
    "fusion-wrapper": "Wraps an instruction that is left alone in a fusion of its own, so that one code"
    " generator serves all.",
    "cse": "Keeps one of several equal instructions (common subexpression elimination).",
    "dce": "Removes instructions whose results nobody reads (dead code elimination).",
    "call-inliner": "Puts the body of a called function in the place of the call.",
    "flatten-call-graph": "Gives each caller a copy of its own of a function that several call.",
    "propagate-call-metadata": "Notes in the instructions of a called function who calls it.",
    "transpose-folding": "Lets a product or a convolution read its operand turned, in place of turning it"
    " first.",
    "reshape-decomposer": "Splits a reshape that has to move data into a copy and a reshape that is free.",
    "reshape-mover": "Moves reshapes and transposes past elementwise instructions, where they meet and"
    " cancel out.",
    "layout-assignment": "Decides for each array which axis is contiguous in memory.",
    "constant_folding": "Computes while compiling what is known while compiling.",
    "copy-insertion": "Adds copies where an array would be overwritten while it is still needed.",
    "adding_copies_to_resolve_interference": "Adds copies where two values that live at the same time"
    " would share a buffer.",
    "removing_unnecessary_copies": "Takes copies out again that turn out not to be needed.",
    "adding_special-case_copies": "Adds copies that the program's edges need, such as a parameter that is"
    " also a result.",
    "dot-library-rewriter": "Hands products, and what follows them, to a library's kernels.",
    "tree_reduction_rewriter": "Splits a long sum into sums of short pieces and a sum of those: smaller"
    " rounding errors.",
    "reduce-window-rewriter": "Turns a running sum, quadratic as it is written, into a tree of short ones.",
    "simplify-while-loops": "Removes loops that run never or once, and what loops carry along for nobody.",
    "while-loop-trip-count-annotator": "Notes how often a loop runs, where that can be told.",
    "while-loop-constant-sinking": "Moves a constant that a loop carries along into its body.",
    "while-loop-invariant-code-motion": "Moves out of a loop what is the same in every round.",
    "small-while-loop-hoisting": "Turns a small loop into a function, so that one kernel does all its"
    " rounds.",
    "simplify-conditional": "Removes branches that are never taken, and conditionals that choose nothing.",
    "conditional-canonicalizer": "Makes every conditional's result a tuple.",
    "gather_simplifier": "Rewrites a gather into a plainer one, with transposes and reshapes around it.",
    "scatter_expander": "Turns a scatter into a loop that writes one update after the other.",
    "convolution-canonicalization": "Reshapes a convolution's operands so that Eigen's fast convolution"
    " takes them.",
    "float-normalization-bf16": "Computes in float32 what the processor cannot compute in bfloat16.",
    "dynamic-dimension-simplifier": "Simplifies what is computed from the sizes of dimensions.",
    "cse_barrier_expander": "Removes optimisation barriers: from here on nothing keeps instructions apart.",
    "zero_sized_hlo_elimination": "Replaces arrays without elements by constants.",
    "tuple-simplifier": "Removes tuples that are taken apart as soon as they are made.",
    "simplify-sorts": "Removes operands of a sort that nobody reads.",
    "logistic-expander": "Writes the logistic function out as 1 / (1 + exp(-x)).",
    "cholesky_expander": "Writes a Cholesky factorisation out as loops of simpler instructions.",
    "dot_decomposer": "Brings every product into the form of a product of matrices, in batches.",
}


def does(name: str) -> str:
    """The sentence on a pass, or "" for one that has none here."""
    return WORDS.get(name, "")
