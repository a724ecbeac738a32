// What the kernels take, and the table of one instruction set's kernels. Pointers are borrowed for
// the call; strides count elements; every array is float32 unless it says otherwise.
// Every kernel computes a row the same way whatever rows stand beside it and however many threads.
#pragma once

#include <cstdint>

namespace tokenspeed_reference {

// out = x / rms(x) * weight over `features`, rows in two levels so that heads may lie in a wider
// tensor: row (i, j) starts at i * outer_stride + j * inner_stride. `residual` (null: none) is
// added first and the sum written to `total`; both and `out` are dense.
struct NormArgs {
  float* out;
  float* total;
  const float* x;
  const float* residual;
  const float* weight;
  int64_t outer, inner, outer_stride, inner_stride, features;
  float eps;
  int threads;
};

// out (rows, features) = silu(first half) * second half of gate_up (rows, 2 * features), both
// dense.
struct SiluArgs {
  float* out;
  const float* gate_up;
  int64_t rows, features;
  int threads;
};

// Rotates the first `turned` dims of x (tokens, heads, head_dim) in place; cos and sin are
// (tokens, turned), dense.
struct RotaryArgs {
  float* x;
  const float* cos;
  const float* sin;
  int64_t tokens, heads, head_dim, turned, token_stride;
  int threads;
};

// y (rows, outputs) = x (rows, inputs) * weight (outputs, inputs)^T + bias (null: none).
struct LinearArgs {
  float* y;
  const float* x;
  const float* weight;
  const float* bias;
  int64_t rows, x_stride, outputs, inputs;
  int threads;
};

// A weight of 4 or 8 bit integers in groups of 32 or 16 inputs, w = scale * q + offset, as
// PackRows lays it out: blocks of kBlockOutputs outputs; in a block one part per group,
//   scales (kBlockOutputs halves) | offsets (the same; 4 bit only) | words (4 bytes an output
//   each).
// A word of 4 bit has inputs 8 w + (0 2 4 6 1 3 5 7) from its lowest nibble up, a word of 8 bit
// inputs 4 w + (0 2 1 3): masks and shifts split it into pairs of 16 bit.
struct PackedShape {
  int64_t outputs, inputs;
  int bits, group;
};
inline constexpr int64_t kBlockOutputs = 16;

// Activations as 16-bit integers in the weight's groups: x = scale * q. All three come from one
// scratch of ActivationBytes(); `sums` are the exact group sums.
struct PackedArgs {
  PackedShape shape;
  float* y;
  const float* x;
  const uint8_t* weight;
  const float* bias;
  void* scratch;
  int64_t rows, x_stride;
  int threads;
};

// One layer's paged cache: element (block, head, token, dim) lies at
// block * block_stride + head * head_stride + token * head_dim + dim.
struct CacheShape {
  int64_t block_stride, head_stride, kv_heads, head_dim, block_tokens;
};

// Attention of one query token a row to its cached tokens [firsts[row], lasts[row]).
// Keys are cut into chunks of kChunkTokens from the first one seen; row r owns chunks
// [chunk_starts[r], chunk_starts[r + 1]).
struct DecodeArgs {
  CacheShape cache;
  float* out;      // (rows, kv_heads * queries_per_kv, head_dim), dense
  const float* q;  // (rows, the same), heads of a row dense
  const float* k;
  const float* v;
  const int32_t* tables;        // (rows, table_stride) block ids
  const int32_t* firsts;        // (rows,)
  const int32_t* lasts;         // (rows,)
  const int32_t* chunk_starts;  // (rows + 1,)
  const float* sinks;           // (heads,) one more score each, whose value is 0; null: none
  float* partials;  // (chunks, heads, head_dim + 2); rows of one chunk leave theirs unused
  int64_t rows, q_stride, table_stride, queries_per_kv;
  float scale;
  float softcap;  // scores s become softcap tanh(s / softcap); 0: none
  int threads;
};
inline constexpr int64_t kChunkTokens = 128;

struct KernelTable {
  const char* name;
  bool (*is_supported)();
  void (*norm)(const NormArgs&);
  void (*silu_mul)(const SiluArgs&);
  void (*rotary)(const RotaryArgs&);
  void (*linear)(const LinearArgs&);
  void (*packed_linear)(const PackedArgs&);
  void (*attend)(const DecodeArgs&);
};

}  // namespace tokenspeed_reference
