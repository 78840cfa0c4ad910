// Atomic operations: many threads on one place, on one line, or each on its own; one thread alone,
// each needing the one before; two units that pass a word to and fro.

DEVICE u32 add_to(u32* place, u32 v) { return atomicAdd(place, v); }
DEVICE u64 add_to(u64* place, u64 v) { return atomicAdd(place, v); }
DEVICE float add_to(float* place, float v) { return atomicAdd(place, v); }
DEVICE double add_to(double* place, double v) { return atomicAdd(place, v); }

// Thread t adds 1 to counter (t % places) * gap, `rounds` times.
#define ADDING(NAME, T)                                                                        \
  KERNEL BLOCK_OF(1024) atomic_add_##NAME(T* counters, u32 places, u32 gap, u32 rounds) {      \
    T* mine = counters + (thread_number() % places) * gap;                                     \
    _Pragma("unroll 1") for (u32 r = 0; r < rounds; ++r) add_to(mine, (T)1);                   \
  }
ADDING(u32, u32)
ADDING(u64, u64)
ADDING(f32, float)
ADDING(f64, double)

// The old value is used, so it has to come back.
KERNEL BLOCK_OF(1024)
atomic_fetch_u32(u32* counters, u32 places, u32 gap, u32 rounds, u32* sums) {
  u32* mine = counters + (thread_number() % places) * gap;
  u32 total = 0;
#pragma unroll 1
  for (u32 r = 0; r < rounds; ++r) total ^= add_to(mine, 1u);
  sums[thread_number()] = total;
}

// Every thread stores its part of what the block counted: adding all of it to one place would take
// as long as a short measurement.
KERNEL BLOCK_OF(1024) atomic_shared_u32(u32* totals, u32 places, u32 gap, u32 rounds) {
  __shared__ u32 counters[2048];
  for (u32 i = threadIdx.x; i < 2048; i += blockDim.x) counters[i] = 0;
  __syncthreads();
  u32* mine = counters + (threadIdx.x % places) * gap;
#pragma unroll 1
  for (u32 r = 0; r < rounds; ++r) add_to(mine, 1u);
  __syncthreads();
  u32 total = 0;
  for (u32 i = threadIdx.x; i < 2048; i += blockDim.x) total += counters[i];
  totals[thread_number()] = total;
}

// One thread, over `lines` lines, a power of two: where one counter lies says little about others.
// `zero` times what came back is part of the next place. out: cycles.
KERNEL atomic_chain(u32* counters, u32 lines, u32 hops, u32 zero, u64* out) {
  u32 seen = 0;
  const u64 begin = core_clock();
#pragma unroll 1
  for (u32 h = 0; h < hops; ++h)
    seen = add_to(counters + (h & (lines - 1)) * 32 + seen * zero, 1u);
  out[0] = core_clock() + (seen & zero) - begin;
}

// The units that the blocks run on.
KERNEL atomic_units(u32* units) {
  if (threadIdx.x == 0) units[blockIdx.x] = unit_id();
}

// Blocks `first` and `second` pass the word to and fro, `rounds` times each. A block that waits
// longer than `most` cycles gives up, and so does the other then. out of each block: cycles, unit,
// rounds done.
KERNEL atomic_ping_pong(u32* word, u32 first, u32 second, u32 rounds, u64 most, u64* out) {
  const u32 role = blockIdx.x == first ? 0 : blockIdx.x == second ? 1 : 2;
  if (role == 2 || threadIdx.x != 0) return;
  const u64 begin = core_clock();
  u32 done = 0;
  for (; done < rounds; ++done) {
    const u64 waiting = core_clock();
    bool mine = false;
    while (!mine && core_clock() - waiting < most)
      mine = compare_swap(word, role, 1 - role) == role;
    if (!mine) break;
  }
  out[3 * role] = core_clock() - begin;
  out[3 * role + 1] = unit_id();
  out[3 * role + 2] = done;
}
