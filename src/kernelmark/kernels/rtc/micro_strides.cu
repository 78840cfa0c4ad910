// Loads that hit the first cache, by the distance between the lanes of a warp: what bank conflicts
// and touching many lines at once cost. Lanes lie in rows of `width`: lane l reads element
// (l % width) * stride + (l / width) * pitch, and 7 more 2 KiB apart each.
#define IN_FLIGHT 8

DEVICE u32 value_of(u32 v) { return v; }
DEVICE u32 value_of(u64 v) { return (u32)v + (u32)(v >> 32); }
DEVICE u32 value_of(quad v) { return fold(v); }

template <typename T>
DEVICE void read_strided(const T* data, u32 width, u32 stride, u32 pitch, u32 rounds, u32 zero,
                         u64* clocks, u32* sums) {
  __shared__ u64 stamps[STAMPS];
  const u32 lane = threadIdx.x % LANES;
  const T* at = data + (lane % width) * stride + (lane / width) * pitch;
  u32 total = 0;
#pragma unroll 1
  for (u32 part = 0; part < 2; ++part) {  // once to bring the lines in
    const u32 many = part ? rounds : 1;
    const u64 begin = start_block();
#pragma unroll 1
    for (u32 r = 0; r < many; ++r) {
      T v[IN_FLIGHT];
#pragma unroll
      for (u32 i = 0; i < IN_FLIGHT; ++i) v[i] = at[i * (2048 / sizeof(T))];
#pragma unroll
      for (u32 i = 0; i < IN_FLIGHT; ++i) total += value_of(v[i]);
      at += zero;
    }
    stop_block(clocks, begin, stamps);
  }
  sums[thread_number()] = total;
}

#define STRIDED(BYTES, T)                                                                      \
  KERNEL BLOCK_OF(1024)                                                                        \
  strided_read_##BYTES(const T* data, u32 width, u32 stride, u32 pitch, u32 rounds, u32 zero,  \
                       u64* clocks, u32* sums) {                                               \
    read_strided<T>(data, width, stride, pitch, rounds, zero, clocks, sums);                   \
  }
STRIDED(4, u32)
STRIDED(8, u64)
STRIDED(16, quad)
