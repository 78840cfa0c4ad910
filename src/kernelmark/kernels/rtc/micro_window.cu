// Windows of memory read, or streamed through, again and again.
//
// A chunk is 4 KiB: what a warp reads with all its loads of 16 bytes in flight. A warp begins at
// chunk `warp + block * rotate` of its block's window and goes on by `step` chunks, round and
// round. So one kernel covers a cache of each unit (every block has all warps on one small
// window), a shared cache (windows = 1, blocks begin at different places), a footprint that all
// blocks share out among them (step = all warps of the grid), and main memory.
#define CHUNK_BYTES 4096
#define PER_LANE (CHUNK_BYTES / 16 / LANES)
#ifdef HOST
#define IN_FLIGHT 8
#define GROUPS (CHUNK_BYTES / sizeof(quad) / IN_FLIGHT)
#else
#define IN_FLIGHT PER_LANE
#define GROUPS 1
#endif
#define CHUNK_QUADS (CHUNK_BYTES / sizeof(quad))

struct Place {
  u64 base;  // in quads, of this lane's first one in the window
  u32 at;    // chunk in the window
};
DEVICE Place begin_at(u32 chunks, u32 windows, u32 rotate) {
  const u32 warp = threadIdx.x / LANES;
  Place p;
  p.base = (u64)(blockIdx.x % windows) * chunks * CHUNK_QUADS + threadIdx.x % LANES;
  p.at = (u32)((warp + (u64)blockIdx.x * rotate) % chunks);
  return p;
}

KERNEL BLOCK_OF(1024)
window_read(const quad* data, u32 chunks, u32 windows, u32 rotate, u32 step, u32 rounds,
            u64* clocks, u32* sums) {
  Place p = begin_at(chunks, windows, rotate);
  Total total[TOTALS] = {};
  __syncthreads();
  const u64 begin = core_clock();
#pragma unroll 1
  for (u32 r = 0; r < rounds; ++r) {
    const quad* from = data + p.base + (u64)p.at * CHUNK_QUADS;
    for (u32 g = 0; g < GROUPS; ++g, from += IN_FLIGHT) {
      quad v[IN_FLIGHT];
#pragma unroll
      for (u32 i = 0; i < IN_FLIGHT; ++i) v[i] = from[i * LANES];
#pragma unroll
      for (u32 i = 0; i < IN_FLIGHT; ++i) gather(total[i % TOTALS], v[i]);
    }
    p.at += step;
    if (p.at >= chunks) p.at -= chunks;
  }
  __syncthreads();
  const u64 end = core_clock();
  stamp_block(clocks, begin, end);
  u32 sum = 0;
  for (u32 i = 0; i < TOTALS; ++i) sum += finish(total[i]);
  sums[thread_number()] = sum;
}

struct Write {
  static DEVICE real4 value(const real4*, const real4*, const real4*, u64, float q) {
    return spread4(q);
  }
};
struct Copy {
  static DEVICE real4 value(const real4* b, const real4*, const real4*, u64 i, float) {
    return b[i];
  }
};
struct Scale {
  static DEVICE real4 value(const real4* b, const real4*, const real4*, u64 i, float q) {
    return q * b[i];
  }
};
struct Triad {  // four streams: a = b + c * d
  static DEVICE real4 value(const real4* b, const real4* c, const real4* d, u64 i, float) {
    return b[i] + c[i] * d[i];
  }
};

template <typename Op>
DEVICE void stream_window(real4* a, const real4* b, const real4* c, const real4* d, float q,
                          u32 chunks, u32 rotate, u32 step, u32 rounds) {
  Place p = begin_at(chunks, 1, rotate);
#pragma unroll 1
  for (u32 r = 0; r < rounds; ++r) {
    u64 at = p.base + (u64)p.at * CHUNK_QUADS;
    for (u32 g = 0; g < GROUPS; ++g, at += IN_FLIGHT) {
      real4 v[IN_FLIGHT];
#pragma unroll
      for (u32 i = 0; i < IN_FLIGHT; ++i) v[i] = Op::value(b, c, d, at + i * LANES, q);
#pragma unroll
      for (u32 i = 0; i < IN_FLIGHT; ++i) a[at + i * LANES] = v[i];
    }
    p.at += step;
    if (p.at >= chunks) p.at -= chunks;
  }
}

#define WINDOW(NAME, OP)                                                                          \
  KERNEL BLOCK_OF(1024)                                                                  \
  window_##NAME(real4* a, const real4* b, const real4* c, const real4* d, float q, u32 chunks,    \
                u32 rotate, u32 step, u32 rounds) {                                               \
    stream_window<OP>(a, b, c, d, q, chunks, rotate, step, rounds);                               \
  }
WINDOW(write, Write)
WINDOW(copy, Copy)
WINDOW(scale, Scale)
WINDOW(triad, Triad)
