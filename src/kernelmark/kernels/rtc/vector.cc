// Multiply-adds of a CPU's vectors, for the host's compiler only: as many independent chains as
// cover latency x pipes and still fit the registers.
#if defined(__AVX512F__) || defined(__aarch64__)
#define CHAINS 24
#else
#define CHAINS 12
#endif

// g++ has the type in C++ since 12 on x86 and 13 on Arm.
#if (defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC) || defined(__AVX512FP16__)) && \
    (defined(__clang__) || __GNUC__ >= 13)
#define HAS_F16
#endif

// The instruction is asked for by name: left to itself, a compiler may make one product and many
// sums of it, and count on none of them being a multiply-add.
#if defined(__AVX512F__)
#include <immintrin.h>
#define FMA_F32(x, y, acc) (vector_t) _mm512_fmadd_ps((__m512)(x), (__m512)(y), (__m512)(acc))
#define FMA_F64(x, y, acc) (vector_t) _mm512_fmadd_pd((__m512d)(x), (__m512d)(y), (__m512d)(acc))
#define FMA_F16(x, y, acc) (vector_t) _mm512_fmadd_ph((__m512h)(x), (__m512h)(y), (__m512h)(acc))
#elif defined(__AVX__) && defined(__FMA__)
#include <immintrin.h>
#define FMA_F32(x, y, acc) (vector_t) _mm256_fmadd_ps((__m256)(x), (__m256)(y), (__m256)(acc))
#define FMA_F64(x, y, acc) (vector_t) _mm256_fmadd_pd((__m256d)(x), (__m256d)(y), (__m256d)(acc))
#elif defined(__aarch64__)
#include <arm_neon.h>
#define FMA_F32(x, y, acc) \
  (vector_t) vfmaq_f32((float32x4_t)(acc), (float32x4_t)(x), (float32x4_t)(y))
#define FMA_F64(x, y, acc) \
  (vector_t) vfmaq_f64((float64x2_t)(acc), (float64x2_t)(x), (float64x2_t)(y))
#define FMA_F16(x, y, acc) \
  (vector_t) vfmaq_f16((float16x8_t)(acc), (float16x8_t)(x), (float16x8_t)(y))
#else
#define FMA_F32(x, y, acc) ((acc) + (x) * (y))
#define FMA_F64(x, y, acc) ((acc) + (x) * (y))
#endif

// Chains have names of their own: an array of them may be written back to memory at every step.
// Starts and factors go through volatiles, a factor at every step: a compiler that sees equal chains
// makes one of them, and one that sees a product takes it out of the loop.
#define TWELVE(DO, FMA, a)                                                                \
  DO(FMA, a##0) DO(FMA, a##1) DO(FMA, a##2) DO(FMA, a##3) DO(FMA, a##4) DO(FMA, a##5)     \
  DO(FMA, a##6) DO(FMA, a##7) DO(FMA, a##8) DO(FMA, a##9) DO(FMA, a##10) DO(FMA, a##11)
#if CHAINS == 24
#define EVERY(DO, FMA) TWELVE(DO, FMA, acc) TWELVE(DO, FMA, more)
#else
#define EVERY(DO, FMA) TWELVE(DO, FMA, acc)
#endif
#define MAKE(FMA, acc) vector_t acc = start;
#define STEP(FMA, acc) acc = FMA(x, y, acc);
#define KEEP(FMA, acc) kept[chain++] = acc;

// `steps` multiply-adds of ones in every chain and lane; `out` takes their sum, which is exact.
#define VECTOR(NAME, ELEMENT, FMA)                                             \
  KERNEL vector_##NAME(u64 steps, double* out) {                               \
    typedef ELEMENT vector_t __attribute__((vector_size(VECTOR_BYTES)));       \
    const int lanes = VECTOR_BYTES / (int)sizeof(ELEMENT);                     \
    vector_t x, kept[CHAINS];                                                  \
    for (int l = 0; l < lanes; ++l) x[l] = (ELEMENT)1;                         \
    volatile vector_t factor = x, start = x - x;                               \
    const vector_t y = factor;                                                 \
    EVERY(MAKE, FMA)                                                           \
    for (u64 s = 0; s < steps; ++s) {                                          \
      x = factor;                                                              \
      EVERY(STEP, FMA)                                                         \
    }                                                                          \
    int chain = 0;                                                             \
    EVERY(KEEP, FMA)                                                           \
    double sum = 0;                                                            \
    for (int i = 0; i < CHAINS; ++i)                                           \
      for (int l = 0; l < lanes; ++l) sum += (double)kept[i][l];               \
    out[blockIdx.x] = sum;                                                     \
  }

VECTOR(f32, float, FMA_F32)
VECTOR(f64, double, FMA_F64)
#ifdef HAS_F16
VECTOR(f16, _Float16, FMA_F16)
#endif
KERNEL vector_chains(u32* out) { *out = CHAINS; }
