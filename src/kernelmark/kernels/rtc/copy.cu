// y = x: eight bytes a load, eight loads of a thread in flight, the odd bytes at the end one by one.
// Both ends lie on multiples of eight bytes.
#define IN_FLIGHT 8

KERNEL copy(u8* y, const u8* x, u64 nbytes) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  const u64 words = nbytes / sizeof(u64);
  const u64* from = (const u64*)x;
  u64* to = (u64*)y;
  u64 i = first;
  for (; i + (IN_FLIGHT - 1) * step < words; i += IN_FLIGHT * step) {
    u64 held[IN_FLIGHT];
#pragma unroll
    for (u32 k = 0; k < IN_FLIGHT; ++k) held[k] = from[i + k * step];
#pragma unroll
    for (u32 k = 0; k < IN_FLIGHT; ++k) to[i + k * step] = held[k];
  }
  for (; i < words; i += step) to[i] = from[i];
  for (u64 k = words * sizeof(u64) + first; k < nbytes; k += step) y[k] = x[k];
}
