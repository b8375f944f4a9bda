// Both kernels for one instruction set; the build compiles this file once for each that the processor may have.
#include "attention.h"

#if defined(OPLAB_ISA_AVX512)
#define OPLAB_ISA avx512
#define OPLAB_ISA_NAME "AVX-512"
#define VL 16  // floats in a vector
#define NV 4   // vectors of queries side by side: 6 x 4 sums, 4 vectors and 1 number fill 32 registers
#elif defined(OPLAB_ISA_AVX2)
#define OPLAB_ISA avx2
#define OPLAB_ISA_NAME "AVX2"
#define VL 8
#define NV 2  // 16 registers
#elif defined(__aarch64__)
#define OPLAB_ISA plain
#define OPLAB_ISA_NAME "NEON"
#define VL 4
#define NV 4
#else
#define OPLAB_ISA plain
#define OPLAB_ISA_NAME "plain"
#define VL 4
#define NV 2
#endif

#include "vector.h"
#include "scores.h"
#include "forward.h"
#include "backward.h"

namespace OPLAB_ISA {
extern const oplab::Kernels kernels;
const oplab::Kernels kernels = {OPLAB_ISA_NAME, kTile, forward_scratch, forward,
                                 padded,         backward_scratch, backward};
}  // namespace OPLAB_ISA
