// A chain of loads, each of which gives the address of the next. One thread follows it.
//
// The chain holds absolute addresses, so that nothing but the load is in it; `index` chains hold
// element numbers, which costs the arithmetic of an address as well. On NVIDIA that is one wide
// multiply-add a hop; offsets in bytes would be an add and then another that needs its carry. On
// AMD the address must be in a vector register, else the scalar cache would serve it: `zero` times
// the thread does that.
typedef GLOBAL const u64* Link;

// How a hop is loaded: plainly, or past a unit's own cache. A plain load in C++ of an address that
// came out of memory would not know that it is global memory.
#ifdef NVIDIA
#define LOADING(NAME, CODE)                                             \
  struct NAME {                                                         \
    static DEVICE u64 load(u64 at) {                                    \
      u64 next;                                                         \
      asm volatile(CODE " %0, [%1];" : "=l"(next) : "l"(at));           \
      return next;                                                      \
    }                                                                   \
  };
LOADING(Plain, "ld.global.u64")
LOADING(Beyond, "ld.global.cg.u64")
#else
struct Plain {
  static DEVICE u64 load(u64 at) { return *(Link)at; }
};
#ifdef AMD
struct Beyond {
  static DEVICE u64 load(u64 at) {
    return __hip_atomic_load((Link)at, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  }
};
#else
typedef Plain Beyond;
#endif
#endif

template <typename Load>
DEVICE u64 follow_many(u64 at, u32 hops) {
#pragma unroll 1
  for (u32 h = 0; h < hops; h += 32) {
#pragma unroll
    for (u32 k = 0; k < 32; ++k) at = Load::load(at);
  }
  return at;
}

// Element i of `offsets` (bytes) is followed by element i + 1, the last by the first.
KERNEL chase_link(u8* base, const u64* offsets, u64 count) {
  const Walk w = walk(count);
  for (u64 i = w.first; i < w.end; i += w.step)
    *(u64*)(base + offsets[i]) = (u64)base + offsets[i + 1 < count ? i + 1 : 0];
}
KERNEL chase_link_index(u8* base, const u64* offsets, u64 count) {
  const Walk w = walk(count);
  for (u64 i = w.first; i < w.end; i += w.step)
    *(u32*)(base + offsets[i]) = (u32)(offsets[i + 1 < count ? i + 1 : 0] / 4);
}

// `warm` hops untimed, then `hops` timed, both multiples of 32. out: cycles, wall ticks, address.
template <typename Load>
DEVICE void timed_chase(u64 at, u32 warm, u32 hops, u64* out, u64 zero) {
  at = follow_many<Load>(at + threadIdx.x * zero, warm);
  const u64 wall = wall_clock();
  const u64 begin = core_clock() + (at & zero);
  at = follow_many<Load>(at, hops);
  const u64 end = core_clock() + (at & zero);
  if (threadIdx.x == 0) {
    out[0] = end - begin;
    out[1] = wall_clock() - wall;
    out[2] = at;
  }
}
KERNEL chase(const u8* start, u32 warm, u32 hops, u64* out, u64 zero) {
  timed_chase<Plain>((u64)start, warm, hops, out, zero);
}
KERNEL chase_beyond(const u8* start, u32 warm, u32 hops, u64* out, u64 zero) {
  timed_chase<Beyond>((u64)start, warm, hops, out, zero);
}

KERNEL chase_index(const u32* base, u32 warm, u32 hops, u64* out, u64 zero) {
  u32 at = (u32)(threadIdx.x * zero);
  const u32 rounds[2] = {warm, hops};
  u64 begin = 0, wall = 0;
#pragma unroll 1
  for (u32 part = 0; part < 2; ++part) {
    wall = wall_clock();
    begin = core_clock() + (at & zero);
#pragma unroll 1
    for (u32 h = 0; h < rounds[part]; h += 32) {
#pragma unroll
      for (u32 k = 0; k < 32; ++k) at = base[at];
    }
  }
  const u64 end = core_clock() + (at & zero);
  if (threadIdx.x == 0) {
    out[0] = end - begin;
    out[1] = wall_clock() - wall;
    out[2] = at;
  }
}

#ifndef HOST
// The cycles of every single hop, at most 1536: what tells a hit from a miss. More would take more
// shared memory, and with it more of the cache that is measured.
#define EACH 1536
KERNEL chase_each(const u8* start, u32 warm, u32 hops, u32* cycles, u64 zero) {
  __shared__ u32 taken[EACH];
  __shared__ u32 seen[EACH];
  u64 at = follow_many<Plain>((u64)start + threadIdx.x * zero, warm);
#pragma unroll 1
  for (u32 h = 0; h < hops && h < EACH; ++h) {
    const u64 begin = core_clock();
    at = Plain::load(at);
    ((volatile u32*)seen)[h] = (u32)at;  // needs the loaded value: the clock below is read after it
    const u64 end = core_clock();
    taken[h] = (u32)(end - begin);
  }
  // No element is at an odd address; using the addresses keeps their stores.
  for (u32 h = 0; h < hops && h < EACH; ++h) cycles[h] = seen[h] & 1 ? 0 : taken[h];
}

// Block 0 follows the chain while all others read `data` chunk by chunk, each chunk no sooner than
// `pause` cycles after the one before, until block 0 is done or `most` chunks are read.
KERNEL BLOCK_OF(1024)
chase_loaded(const u8* start, u32 warm, u32 hops, u64* out, u64 zero, const quad* data, u64 quads,
             u32 pause, u32 most, u32* done, u32* chunks, u32* sums) {
  if (blockIdx.x == 0) {
    if (threadIdx.x != 0) return;
    timed_chase<Plain>((u64)start, warm, hops, out, zero);
    fence_device();
    compare_swap(done, 0, 1);
    return;
  }
  const u64 mine = quads / (gridDim.x - 1) / (blockDim.x * 4) * (blockDim.x * 4);
  const quad* from = data + (u64)(blockIdx.x - 1) * mine + threadIdx.x;
  u64 at = 0;
  u32 total = 0, read = 0;
#pragma unroll 1
  while (read < most && !read_fresh(done)) {
    const u64 begin = core_clock();
    quad v[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) v[i] = from[at + i * blockDim.x];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) total += fold(v[i]);
    at += 4 * blockDim.x;
    if (at >= mine) at = 0;
    ++read;
    while (core_clock() - begin < pause) {
    }
  }
  sums[thread_number()] = total;
  if (threadIdx.x == 0) chunks[blockIdx.x] = read;
}
#endif
