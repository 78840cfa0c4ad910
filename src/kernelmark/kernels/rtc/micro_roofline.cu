// Elements read once and put through a given number of multiply-adds each: intensity from the
// memory's end to the arithmetic's. v = v * m + v needs two registers, and is one instruction on
// every CPU too; with m = 2^-12 it stays near what it began with.
#define CHAINS 8

#ifdef HOST
DEVICE real4 step(real4 v, real4 m) { return v * m + v; }
DEVICE pair step(pair v, pair m) { return v * m + v; }
#else
DEVICE real4 step(real4 v, real4 m) {
  v.x = fused(v.x, m.x, v.x);
  v.y = fused(v.y, m.x, v.y);
  v.z = fused(v.z, m.x, v.z);
  v.w = fused(v.w, m.x, v.w);
  return v;
}
DEVICE pair step(pair v, pair m) {
  v.x = fused(v.x, m.x, v.x);
  v.y = fused(v.y, m.x, v.y);
  return v;
}
#endif

// `sixteens` times 16 steps at run time and FEW at compile time, on every element.
template <int FEW, int VECTORS, typename V, typename T>
DEVICE void sweep(const V* data, T* sums, u64 n, u32 sixteens, V m, V zero) {
  const Walk w = walk(n);
  V total = zero;
  u64 i = w.first;
#pragma unroll 1
  for (; i + (VECTORS - 1) * w.step < w.end; i += VECTORS * w.step) {
    V v[VECTORS];
#pragma unroll
    for (u32 k = 0; k < VECTORS; ++k) v[k] = data[i + k * w.step];
#pragma unroll
    for (u32 f = 0; f < FEW; ++f)
#pragma unroll
      for (u32 k = 0; k < VECTORS; ++k) v[k] = step(v[k], m);
#pragma unroll 1
    for (u32 s = 0; s < sixteens; ++s) {
#pragma unroll
      for (u32 f = 0; f < 16; ++f)
#pragma unroll
        for (u32 k = 0; k < VECTORS; ++k) v[k] = step(v[k], m);
    }
#pragma unroll
    for (u32 k = 0; k < VECTORS; ++k) total = total + v[k];
  }
  sums[thread_number()] = fold(total);
}

#ifdef HOST
#define VECTORS_F32 8
#define VECTORS_F64 8
#else
#define VECTORS_F32 (CHAINS / 4)
#define VECTORS_F64 (CHAINS / 2)
#endif
#define ROOFLINE(FEW)                                                                             \
  KERNEL BLOCK_OF(1024)                                                                  \
  roofline_f32_##FEW(const real4* data, float* sums, u64 n, u32 sixteens, float m) {              \
    sweep<FEW, VECTORS_F32>(data, sums, n, sixteens, spread4(m), spread4(0.0f));                  \
  }                                                                                               \
  KERNEL BLOCK_OF(1024)                                                                  \
  roofline_f64_##FEW(const pair* data, double* sums, u64 n, u32 sixteens, double m) {             \
    sweep<FEW, VECTORS_F64>(data, sums, n, sixteens, spread(m), spread(0.0));                     \
  }
ROOFLINE(0)
ROOFLINE(1)
ROOFLINE(2)
ROOFLINE(4)
ROOFLINE(8)
