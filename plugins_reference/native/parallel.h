// Work spread over the threads of OpenMP's pool, which is torch's own: `_cpu` is imported after
// torch, so that both resolve to one runtime and no second pool spins beside it.
// What a range computes must not depend on where the ranges are cut.
#pragma once

#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

#ifndef TS_ISA
#error "TS_ISA names the instruction set that this file is compiled for"
#endif

namespace tokenspeed_reference::TS_ISA {

// Below this many multiply-adds (or about as much other work) one thread is faster.
inline constexpr int64_t kWorthThreads = 1 << 16;

// Calls body(first, last) on consecutive ranges of [0, count); `work` is the size of the whole.
template <typename Body>
void Parallel(int64_t count, int64_t work, int threads, const Body& body) {
#if defined(_OPENMP)
  if (threads > 1 && count > 1 && work >= kWorthThreads) {
#pragma omp parallel num_threads(threads)
    {
      const int64_t size = omp_get_num_threads(), id = omp_get_thread_num();
      body(count * id / size, count * (id + 1) / size);
    }
    return;
  }
#endif
  (void)threads;
  (void)work;
  body(0, count);
}

// Calls body(index) for each of `count` tasks of different lengths, the next free thread taking the
// next task.
template <typename Body>
void ParallelTasks(int64_t count, int64_t work, int threads, const Body& body) {
#if defined(_OPENMP)
#pragma omp parallel for schedule(dynamic) \
    num_threads(threads) if (threads > 1 && count > 1 && work >= kWorthThreads)
#endif
  for (int64_t index = 0; index < count; ++index) body(index);
}

}  // namespace tokenspeed_reference::TS_ISA
