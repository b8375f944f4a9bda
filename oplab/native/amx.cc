// Both kernels on AMX; the build compiles this file beside those of kernels.cc where the compiler knows AMX.
#define OPLAB_ISA_AVX512
#define OPLAB_ISA amx
#define VL 16
#include <algorithm>

#include "attention.h"
#include "vector.h"
#include "scores.h"
#include "amx_tiles.h"

namespace avx512 {
extern const oplab::Kernels kernels;  // for what is none for AMX
}

namespace amx {
constexpr int64_t kWorthwhile = 256;  // queries of a head for which it pays to cut float32 in pieces
constexpr float kHuge = 1024;         // scores from there on are left to AVX-512: see `solved`
}  // namespace amx

#include "amx_pipeline.h"
#include "amx_forward.h"
#include "amx_backward.h"

namespace amx {

// bfloat16 is differentiated in float32.
extern const oplab::Kernels float32, bfloat16;
const oplab::Kernels float32 = {"AMX", kTile, forward_scratch<3>, forward<3>, padded, backward_scratch, backward};
const oplab::Kernels bfloat16 = {"AMX", kTile, forward_scratch<1>, forward<1>, nullptr, nullptr, nullptr};

}  // namespace amx
