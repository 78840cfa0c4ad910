// Shared memory (LDS): bandwidth by width and by stride between lanes, and latency.
#define WORDS 12288  // 48 KiB: every stride up to 32 elements of 16 bytes fits, for 64 lanes
#define IN_FLIGHT 8

DEVICE u32 value_of(u32 v) { return v; }
DEVICE u32 value_of(quad v) { return fold(v); }
DEVICE u32 value_of(u64 v) { return (u32)v + (u32)(v >> 32); }

// Lane l reads element l * stride, and 7 more 2 KiB apart each, `rounds` times. `zero` is added to
// the address every time: for all the compiler knows, it reads something else.
template <typename T>
DEVICE void read_shared(u32 stride, u32 rounds, u32 zero, u64* clocks, u32* sums) {
  __shared__ quad room[WORDS / 4];
  u32* words = (u32*)room;
  for (u32 i = threadIdx.x; i < WORDS; i += blockDim.x) words[i] = i;
  const T* at = (const T*)room + (threadIdx.x % LANES) * stride;
  u32 total = 0;
  const u64 begin = start_block();
#pragma unroll 1
  for (u32 r = 0; r < rounds; ++r) {
    T v[IN_FLIGHT];
#pragma unroll
    for (u32 i = 0; i < IN_FLIGHT; ++i) v[i] = at[i * (2048 / sizeof(T))];
#pragma unroll
    for (u32 i = 0; i < IN_FLIGHT; ++i) total += value_of(v[i]);
    at += zero;
  }
  stop_block(clocks, begin, (u64*)room);
  sums[thread_number()] = total;
}
KERNEL BLOCK_OF(1024) shared_read_4(u32 stride, u32 rounds, u32 zero, u64* clocks, u32* sums) {
  read_shared<u32>(stride, rounds, zero, clocks, sums);
}
KERNEL BLOCK_OF(1024) shared_read_8(u32 stride, u32 rounds, u32 zero, u64* clocks, u32* sums) {
  read_shared<u64>(stride, rounds, zero, clocks, sums);
}
KERNEL BLOCK_OF(1024) shared_read_16(u32 stride, u32 rounds, u32 zero, u64* clocks, u32* sums) {
  read_shared<quad>(stride, rounds, zero, clocks, sums);
}

// Every word holds the byte offset of the next one, 33 words on. out: cycles, hops checked.
#define LINKS 4096
KERNEL BLOCK_OF(64) shared_chase(u32 hops, u32 zero, u64* out) {
  __shared__ u32 next[LINKS];
  for (u32 i = threadIdx.x; i < LINKS; i += blockDim.x) next[i] = (i + 33) % LINKS * 4;
  __syncthreads();
  u32 at = threadIdx.x * zero;
  const u64 begin = core_clock();
#pragma unroll 1
  for (u32 h = 0; h < hops; h += 32) {
#pragma unroll
    for (u32 k = 0; k < 32; ++k) at = *(u32*)((u8*)next + at);
  }
  const u64 end = core_clock() + (at & zero);
  if (threadIdx.x == 0) {
    out[0] = end - begin;
    out[1] = at / 4;
  }
}
