// Decode attention over the paged cache. A task is one chunk of one row's keys and one kv head,
// with all query heads that share it. Chunks lie at fixed positions, so that neither threads nor
// other rows change a result; a row of several chunks joins their partial sums afterwards. Source:
// Flash-Decoding, Dao et al. 2023 (partial sums over key ranges); fixed chunks are ours.

#include <cmath>

#include "kernels.h"
#include "parallel.h"
#include "simd.h"

namespace tokenspeed_reference::TS_ISA {
namespace {

constexpr int kMaxQueries = 4;  // query heads worked on together
constexpr int kVectors = 4;     // vectors of the head dimension summed together
constexpr int64_t kAheadKeys = 16;
constexpr float kLowest = -3.0e38f;

// Keys [first, first + count) of one row for one kv head, in pieces that lie in one block each.
struct Keys {
  const DecodeArgs& a;
  const int32_t* table;
  int64_t head, first, count;

  // Calls body(element offset of the first key, its index in the chunk, keys in the piece).
  template <typename Body>
  void ForPieces(const Body& body) const {
    const CacheShape& c = a.cache;
    for (int64_t done = 0; done < count;) {
      const int64_t position = first + done, inside = position % c.block_tokens;
      const int64_t keys = Min(count - done, c.block_tokens - inside);
      const int64_t block = table[position / c.block_tokens];
      body(block * c.block_stride + head * c.head_stride + inside * c.head_dim, done, keys);
      done += keys;
    }
  }
};

template <int kQueries>
void Scores(const Keys& keys, const float* q, float (*scores)[kChunkTokens]) {
  const int64_t dim = keys.a.cache.head_dim;
  const float scale = keys.a.scale;
  keys.ForPieces([&](int64_t offset, int64_t index, int64_t count) {
    const float* k = keys.a.k + offset;
    const float* v = keys.a.v + offset;
    for (int64_t s = 0; s < count; ++s, k += dim, v += dim) {
      // The values are read next: they arrive while the scores are computed.
      for (int64_t line = 0; line < dim; line += kLineFloats) {
        Prefetch(k + kAheadKeys * dim + line);
        Prefetch(v + line);
      }
      Floats sums[kQueries] = {};
      int64_t d = 0;
      for (; d + kLanes <= dim; d += kLanes) {
        const Floats key = LoadFloats(k + d);
        for (int g = 0; g < kQueries; ++g) sums[g] = LoadFloats(q + g * dim + d) * key + sums[g];
      }
      for (int g = 0; g < kQueries; ++g) {
        float sum = Sum(sums[g]);
        for (int64_t j = d; j < dim; ++j) sum += q[g * dim + j] * k[j];
        scores[g][index + s] = sum * scale;
      }
    }
  });
}

// Bends scores: softcap tanh(score / softcap).
void Cap(float* scores, int64_t count, float softcap) {
  const auto bend = [&](Floats score) {
    return softcap - 2.0f * softcap / (1.0f + Exp(score * (2.0f / softcap)));
  };
  int64_t s = 0;
  for (; s + kLanes <= count; s += kLanes) Store(scores + s, bend(LoadFloats(scores + s)));
  for (; s < count; ++s) scores[s] = bend(Splat(scores[s]))[0];
}

// What a head's sink adds to the sum of exp(score - top).
float SinkShare(const DecodeArgs& a, int64_t head, float top) {
  return a.sinks == nullptr ? 0.0f : Exp(Splat(a.sinks[head] - top))[0];
}

// Turns scores into exp(score - largest); returns the largest and the sum.
void Softmax(float* scores, int64_t count, float* largest, float* total) {
  float top = kLowest;
  for (int64_t s = 0; s < count; ++s) top = scores[s] > top ? scores[s] : top;
  Floats sums = {};
  int64_t s = 0;
  for (; s + kLanes <= count; s += kLanes) {
    const Floats e = Exp(LoadFloats(scores + s) - top);
    Store(scores + s, e);
    sums += e;
  }
  float sum = Sum(sums);
  for (; s < count; ++s) sum += scores[s] = Exp(Splat(scores[s] - top))[0];
  *largest = top;
  *total = sum;
}

// out[g] (dim wide, queries `stride` apart) = sum over keys of weights[g][s] * value[s].
template <int kQueries>
void Values(const Keys& keys, const float (*weights)[kChunkTokens], float* out, int64_t stride) {
  const int64_t dim = keys.a.cache.head_dim;
  int64_t d = 0;
  for (; d + kVectors * kLanes <= dim; d += kVectors * kLanes) {
    Floats sums[kQueries][kVectors] = {};
    keys.ForPieces([&](int64_t offset, int64_t index, int64_t count) {
      const float* v = keys.a.v + offset + d;
      for (int64_t s = 0; s < count; ++s, v += dim) {
        Floats value[kVectors];
        for (int n = 0; n < kVectors; ++n) value[n] = LoadFloats(v + n * kLanes);
        for (int g = 0; g < kQueries; ++g) {
          const float weight = weights[g][index + s];
          for (int n = 0; n < kVectors; ++n) sums[g][n] = value[n] * weight + sums[g][n];
        }
      }
    });
    for (int g = 0; g < kQueries; ++g) {
      for (int n = 0; n < kVectors; ++n) Store(out + g * stride + d + n * kLanes, sums[g][n]);
    }
  }
  for (; d < dim; ++d) {
    float sums[kQueries] = {};
    keys.ForPieces([&](int64_t offset, int64_t index, int64_t count) {
      const float* v = keys.a.v + offset + d;
      for (int64_t s = 0; s < count; ++s) {
        for (int g = 0; g < kQueries; ++g) sums[g] += v[s * dim] * weights[g][index + s];
      }
    });
    for (int g = 0; g < kQueries; ++g) out[g * stride + d] = sums[g];
  }
}

template <int kQueries>
void ChunkOfHeads(const Keys& keys, int64_t row, int64_t chunk, bool is_whole, int64_t query) {
  const DecodeArgs& a = keys.a;
  const int64_t dim = a.cache.head_dim, heads = a.cache.kv_heads * a.queries_per_kv;
  const int64_t head = keys.head * a.queries_per_kv + query;
  alignas(64) float scores[kQueries][kChunkTokens];
  float largest[kQueries], totals[kQueries];
  Scores<kQueries>(keys, a.q + row * a.q_stride + head * dim, scores);
  for (int g = 0; g < kQueries; ++g) {
    if (a.softcap != 0.0f) Cap(scores[g], keys.count, a.softcap);
    Softmax(scores[g], keys.count, largest + g, totals + g);
  }
  if (is_whole) {
    for (int g = 0; g < kQueries; ++g) {
      const float inverse = 1.0f / (totals[g] + SinkShare(a, head + g, largest[g]));
      for (int64_t s = 0; s < keys.count; ++s) scores[g][s] *= inverse;
    }
    return Values<kQueries>(keys, scores, a.out + (row * heads + head) * dim, dim);
  }
  float* partial = a.partials + (chunk * heads + head) * (dim + 2);
  for (int g = 0; g < kQueries; ++g) {
    partial[g * (dim + 2) + dim] = largest[g];
    partial[g * (dim + 2) + dim + 1] = totals[g];
  }
  Values<kQueries>(keys, scores, partial, dim + 2);
}

void Chunk(const DecodeArgs& a, int64_t row, int64_t chunk, int64_t kv_head) {
  const int64_t first = a.firsts[row] + (chunk - a.chunk_starts[row]) * kChunkTokens;
  const Keys keys{a, a.tables + row * a.table_stride, kv_head, first,
                  Min(kChunkTokens, a.lasts[row] - first)};
  const bool is_whole = a.chunk_starts[row + 1] - a.chunk_starts[row] == 1;
  for (int64_t query = 0; query < a.queries_per_kv;) {
    switch (Min(a.queries_per_kv - query, kMaxQueries)) {
      case 1:
        ChunkOfHeads<1>(keys, row, chunk, is_whole, query);
        break;
      case 2:
        ChunkOfHeads<2>(keys, row, chunk, is_whole, query);
        break;
      case 3:
        ChunkOfHeads<3>(keys, row, chunk, is_whole, query);
        break;
      default:
        ChunkOfHeads<kMaxQueries>(keys, row, chunk, is_whole, query);
    }
    query += kMaxQueries;
  }
}

// Joins the chunks of one head: each sum is brought to the largest score of all.
void Join(const DecodeArgs& a, int64_t row, int64_t head) {
  const int64_t dim = a.cache.head_dim, heads = a.cache.kv_heads * a.queries_per_kv;
  const int64_t first = a.chunk_starts[row], last = a.chunk_starts[row + 1];
  const auto partial = [&](int64_t chunk) {
    return a.partials + (chunk * heads + head) * (dim + 2);
  };
  float top = kLowest;
  for (int64_t c = first; c < last; ++c) top = partial(c)[dim] > top ? partial(c)[dim] : top;
  float* out = a.out + (row * heads + head) * dim;
  for (int64_t d = 0; d < dim; ++d) out[d] = 0.0f;
  float total = SinkShare(a, head, top);
  for (int64_t c = first; c < last; ++c) {
    const float* part = partial(c);
    const float factor = Exp(Splat(part[dim] - top))[0];
    total += part[dim + 1] * factor;
    for (int64_t d = 0; d < dim; ++d) out[d] += part[d] * factor;
  }
  for (int64_t d = 0; d < dim; ++d) out[d] /= total;
}

int64_t RowOf(const DecodeArgs& a, int64_t chunk) {
  int64_t low = 0, high = a.rows;  // chunk_starts[low] <= chunk < chunk_starts[high]
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (a.chunk_starts[middle] <= chunk ? low : high) = middle;
  }
  return low;
}

}  // namespace

void Attend(const DecodeArgs& a) {
  const int64_t kv_heads = a.cache.kv_heads, chunks = a.chunk_starts[a.rows];
  const int64_t heads = kv_heads * a.queries_per_kv;
  int64_t keys = 0;
  for (int64_t row = 0; row < a.rows; ++row) keys += a.lasts[row] - a.firsts[row];
  const int64_t work = 2 * keys * heads * a.cache.head_dim;
  ParallelTasks(chunks * kv_heads, work, a.threads, [&](int64_t task) {
    const int64_t chunk = task / kv_heads;
    Chunk(a, RowOf(a, chunk), chunk, task % kv_heads);
  });
  if (chunks == a.rows) return;
  Parallel(a.rows, chunks * heads * a.cache.head_dim, a.threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      if (a.chunk_starts[row + 1] - a.chunk_starts[row] == 1) continue;
      for (int64_t head = 0; head < heads; ++head) Join(a, row, head);
    }
  });
}

}  // namespace tokenspeed_reference::TS_ISA
