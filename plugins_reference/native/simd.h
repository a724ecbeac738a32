// Vectors of one instruction set, in compiler extensions that every g++ and clang knows.
// Each kernel file is compiled once per instruction set (CMakeLists.txt), with TS_ISA as the name
// of its namespace. Nothing of the standard library is instantiated here or in those files: the
// linker would keep one copy of such a template, perhaps the one this processor cannot run. Thread:
// any. Legend: a vector has kLanes lanes of 32 bits.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#ifndef TS_ISA
#error "TS_ISA names the instruction set that this file is compiled for"
#endif

namespace tokenspeed_reference::TS_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef int16_t Shorts __attribute__((vector_size(4 * kLanes)));

template <typename Vector, typename Element>
inline Vector Load(const Element* from) {
  Vector v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

inline constexpr int64_t kLineFloats = 16;

// Asks for a cache line; any address is allowed.
inline void Prefetch(const float* at) { __builtin_prefetch(at, 0, 2); }

inline Floats LoadFloats(const float* from) { return Load<Floats>(from); }
inline void Store(float* to, Floats v) { std::memcpy(to, &v, sizeof(v)); }
inline Floats Splat(float x) { return x - Floats{}; }
inline Ints SplatInt(int32_t x) { return x - Ints{}; }
inline float Max(float a, float b) { return a > b ? a : b; }
inline Floats Max(Floats a, Floats b) { return a > b ? a : b; }
inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

// Adds the lanes in halves, always in the same order.
inline float Sum(Floats v) {
#if defined(__SSE2__)
#if defined(__AVX512F__)
  const auto whole = reinterpret_cast<__m512d>(v);
  const __m256 half = _mm256_add_ps(_mm256_castpd_ps(_mm512_castpd512_pd256(whole)),
                                    _mm256_castpd_ps(_mm512_extractf64x4_pd(whole, 1)));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif defined(__AVX2__)
  const auto half = reinterpret_cast<__m256>(v);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#else
  const auto four = reinterpret_cast<__m128>(v);
#endif
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

inline float MaxOf(Floats v) {
  float best = v[0];
  for (int i = 1; i < kLanes; ++i) best = Max(best, v[i]);
  return best;
}

// e^x to about 1e-7, x held in [-87.3, 88.3] so that the result is a normal number; NaN stays.
// Source: Cephes mathematical library, expf (Moshier 1989): argument reduction and polynomial.
inline Floats Exp(Floats x) {
  const Floats low = Splat(-87.3f), high = Splat(88.3f), round = Splat(12582912.0f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Floats n = (x * 1.44269504f + round) - round;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
  return p * Load<Floats>(&power);
}

// Widens kLanes half-precision numbers; exact, also for subnormal ones.
inline Floats LoadHalves(const uint16_t* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_cvtph_ps(Load<__m256i>(from)));
#elif defined(__F16C__)
  return reinterpret_cast<Floats>(_mm256_cvtph_ps(Load<__m128i>(from)));
#else
  Words bits;
  for (int i = 0; i < kLanes; ++i) bits[i] = from[i];
  const Words magnitude = (bits & 0x7fff) << 13, sign = (bits & 0x8000) << 16;
  const Floats scaled = Load<Floats>(&magnitude) * 0x1p112f;
  const Words joined = Load<Words>(&scaled) | sign;
  return Load<Floats>(&joined);
#endif
}

// acc + a.low * b.low + a.high * b.high, each lane holding two 16-bit integers.
inline Ints DotPairs(Ints acc, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<Ints>(_mm512_dpwssd_epi32(
      reinterpret_cast<__m512i>(acc), reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return acc + reinterpret_cast<Ints>(
                   _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__) && !defined(__AVX2__)
  return acc + reinterpret_cast<Ints>(
                   _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  const Ints low_a = (a << 16) >> 16, low_b = (b << 16) >> 16;
  return acc + low_a * low_b + (a >> 16) * (b >> 16);
#endif
}

}  // namespace tokenspeed_reference::TS_ISA
