#include "decode_step.h"

#include <cstring>
#include <utility>

#include "dispatch.h"

namespace tokenspeed_reference {

DecodeStep::DecodeStep(int64_t kv_heads, int64_t queries_per_kv, int64_t head_dim,
                       int64_t block_tokens, std::vector<int32_t> tables,
                       std::vector<int32_t> firsts, std::vector<int32_t> lasts,
                       std::vector<int64_t> blocks, std::vector<int64_t> offsets)
    : kv_heads_(kv_heads),
      queries_per_kv_(queries_per_kv),
      head_dim_(head_dim),
      block_tokens_(block_tokens),
      tables_(std::move(tables)),
      firsts_(std::move(firsts)),
      lasts_(std::move(lasts)),
      chunk_starts_{0},
      blocks_(std::move(blocks)),
      offsets_(std::move(offsets)) {
  bool is_cut = false;
  for (size_t row = 0; row < lasts_.size(); ++row) {
    const int64_t chunks = (lasts_[row] - firsts_[row] + kChunkTokens - 1) / kChunkTokens;
    chunk_starts_.push_back(static_cast<int32_t>(chunk_starts_.back() + chunks));
    is_cut = is_cut || chunks > 1;
  }
  const int64_t heads = kv_heads_ * queries_per_kv_;
  if (is_cut) partials_.resize(chunk_starts_.back() * heads * (head_dim_ + 2));
}

void DecodeStep::Write(float* cache, int64_t block_stride, int64_t head_stride, const float* x,
                       int64_t x_stride) const {
  for (size_t token = 0; token < blocks_.size(); ++token, x += x_stride) {
    float* cell = cache + blocks_[token] * block_stride + offsets_[token] * head_dim_;
    for (int64_t head = 0; head < kv_heads_; ++head) {
      std::memcpy(cell + head * head_stride, x + head * head_dim_, 4 * head_dim_);
    }
  }
}

void DecodeStep::Attend(float* out, const float* q, int64_t q_stride, const float* k,
                        const float* v, int64_t block_stride, int64_t head_stride,
                        const float* sinks, float scale, float softcap, int threads) {
  const auto rows = static_cast<int64_t>(lasts_.size());
  if (rows == 0) return;
  Kernels().attend({{block_stride, head_stride, kv_heads_, head_dim_, block_tokens_},
                    out,
                    q,
                    k,
                    v,
                    tables_.data(),
                    firsts_.data(),
                    lasts_.data(),
                    chunk_starts_.data(),
                    sinks,
                    partials_.data(),
                    rows,
                    q_stride,
                    static_cast<int64_t>(tables_.size()) / rows,
                    queries_per_kv_,
                    scale,
                    softcap,
                    threads});
}

}  // namespace tokenspeed_reference
