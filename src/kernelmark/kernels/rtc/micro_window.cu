// Windows of memory that are read repeatedly.
//
// A chunk is 4 KiB: what a warp reads with all its loads of 16 bytes in flight. Chunks follow each
// other in one of two orders. Scattered: every warp reads any chunk of its block's window next, so
// that a cache serves no more of them than its fraction of the window, however far the warps drift
// apart; in an even order each would come back to a few chunks of its own, and hit them. Even: a
// warp begins at chunk `warp + block * rotate` and goes on by `step` chunks, round and round: for
// the window of a block that is one thread.
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

// The chunks that a warp reads, one after the other.
struct Even {
  u32 at, step, chunks;
  DEVICE u32 next() {
    const u32 now = at;
    at += step;
    if (at >= chunks) at -= chunks;
    return now;
  }
};
struct Scattered {
  u32 state, chunks;
  DEVICE u32 next() {
    state = state * 1664525u + 1013904223u;
    return (u32)(((u64)state * chunks) >> 32);
  }
};

template <typename Order>
DEVICE void read_chunks(const quad* from, Order order, u32 rounds, u64* clocks, u32* sums) {
  __shared__ u64 stamps[STAMPS];
  Total total[TOTALS] = {};
  const u64 begin = start_block();
#pragma unroll 1
  for (u32 r = 0; r < rounds; ++r) {
    const quad* chunk = from + (u64)order.next() * CHUNK_QUADS;
    for (u32 g = 0; g < GROUPS; ++g, chunk += IN_FLIGHT) {
      quad v[IN_FLIGHT];
#pragma unroll
      for (u32 i = 0; i < IN_FLIGHT; ++i) v[i] = chunk[i * LANES];
#pragma unroll
      for (u32 i = 0; i < IN_FLIGHT; ++i) gather(total[i % TOTALS], v[i]);
    }
  }
  stop_block(clocks, begin, stamps);
  u32 sum = 0;
  for (u32 i = 0; i < TOTALS; ++i) sum += finish(total[i]);
  sums[thread_number()] = sum;
}

KERNEL BLOCK_OF(1024)
window_read(const quad* data, u32 chunks, u32 windows, u32 rotate, u32 step, u32 rounds,
            u64* clocks, u32* sums) {
  const Place p = begin_at(chunks, windows, rotate);
  read_chunks(data + p.base, Even{p.at, step, chunks}, rounds, clocks, sums);
}

// Blocks go through their windows in the same order, or, with `rotate`, each in its own.
KERNEL BLOCK_OF(1024)
window_scatter(const quad* data, u32 chunks, u32 windows, u32 rotate, u32 rounds, u64* clocks,
               u32* sums) {
  const Place p = begin_at(chunks, windows, 0);
  const u32 number = threadIdx.x / LANES + blockIdx.x * rotate;
  const u32 seed = (number + 1) * 0x9e3779b9u;
  read_chunks(data + p.base, Scattered{seed ^ (seed >> 15), chunks}, rounds, clocks, sums);
}
