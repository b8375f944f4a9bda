"""Reading a Pallas kernel without running it: which block of which array each step works on, what that moves
between memories, and which mistakes are in it.

A *kernel* is an ordinary function of Refs, small buffers in fast memory. `pallas_call` runs it once for each
point of a *grid*, like nested `for` loops; each such run is a step, or *program*. A *block spec* says which
piece of an array a step works on: a block shape, and an *index map* from the step's place in the grid to the
number of a block. Before a step the pipeline *fetches* its input blocks from large, slow memory into the
Refs, and after it writes the output blocks back; a block that the step before had is not moved again.

    pallas.kernels(f, *args)    one row a kernel:        grid, operands, where it stands
    pallas.steps(f, *args)      one row a step and operand: the block, and the bytes it moves
    pallas.traffic(f, *args)    one row an operand:      how often its array crosses between the memories
    pallas.check(f, *args)      one row a mistake:       empty when all is well
    pallas.show(f, *args)       all of this as a page with a slider over the steps

`args` are those of a call of `f`; `jax.ShapeDtypeStruct` will do for any array whose values no index map
needs. `f` is traced and the index maps, which are integer arithmetic, are computed on the CPU. The kernel
itself never runs, and no accelerator is needed.

Sources: the Pallas documentation, "Grids and BlockSpecs", "Software Pipelining" and "Writing TPU kernels with
Pallas" (docs.jax.dev/en/latest/pallas).
"""

from .check import check
from .kernels import kernels
from .show import show
from .steps import steps, traffic

__all__ = ["check", "kernels", "show", "steps", "traffic"]
