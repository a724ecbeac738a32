// What all layers of one step share: where each token's key and value go, and what the decode rows
// read. Made once a step; keeps copies of the tables, and scratch.
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace tokenspeed_reference {

class DecodeStep {
 public:
  // tables: (rows, table_stride) block ids; row r sees the positions [firsts[r], lasts[r]).
  // blocks, offsets: (tokens,) where each token of the step is written.
  DecodeStep(int64_t kv_heads, int64_t queries_per_kv, int64_t head_dim, int64_t block_tokens,
             std::vector<int32_t> tables, std::vector<int32_t> firsts, std::vector<int32_t> lasts,
             std::vector<int64_t> blocks, std::vector<int64_t> offsets);

  // Stores keys or values x (tokens, kv_heads, head_dim), tokens `x_stride` apart, in a layer's
  // cache, blocks and heads `block_stride` and `head_stride` apart.
  void Write(float* cache, int64_t block_stride, int64_t head_stride, const float* x,
             int64_t x_stride) const;

  // Attends the decode rows, out (rows, heads, head_dim); sinks and softcap as in DecodeArgs.
  void Attend(float* out, const float* q, int64_t q_stride, const float* k, const float* v,
              int64_t block_stride, int64_t head_stride, const float* sinks, float scale,
              float softcap, int threads);

 private:
  int64_t kv_heads_, queries_per_kv_, head_dim_, block_tokens_;
  std::vector<int32_t> tables_, firsts_, lasts_, chunk_starts_;
  std::vector<int64_t> blocks_, offsets_;
  std::vector<float> partials_;
};

}  // namespace tokenspeed_reference
