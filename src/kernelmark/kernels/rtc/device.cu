// The device's own kernels: inputs, poison scan, gather, clocks, gate, strain.

// Elements in groups of eight bytes: two at a time do not reach half of a GPU's bandwidth. Tensors
// are aligned to that, the pool is read at any element.
template <typename T>
union Group {
  enum { size = 8 / sizeof(T) };
  T element[size];
  u64 bits;
};

// The pool's elements from `at` on, as many as a group has.
template <typename T>
__device__ inline Group<T> pool_group(const T* pool, u32 at, u32 period) {
  Group<T> group;
#pragma unroll
  for (u32 i = 0; i < Group<T>::size; ++i) {
    group.element[i] = pool[at];
    if (++at == period) at = 0;
  }
  return group;
}

template <typename T>
__device__ void copy_pool(T* out, const T* pool, u64 count, u32 offset, u32 period) {
  const u32 size = Group<T>::size;
  const u64 step = (u64)gridDim.x * blockDim.x, groups = count / size;
  const u32 hop = (u32)(step * size % period);
  const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  u32 at = (u32)((offset + first * size) % period);
  for (u64 i = first; i < groups; i += step) {
    ((u64*)out)[i] = pool_group(pool, at, period).bits;
    at += hop;
    if (at >= period) at -= period;
  }
  const u64 last = groups * size + first;
  if (last < count) out[last] = pool[(offset + last) % period];
}

// Several tensors of one size: an address and an offset for each.
struct Table {
  u64 rows[64][2];
};

template <typename T>
__device__ void copy_pool_all(const Table& table, const T* pool, u64 count, u32 period) {
  const u64* mine = table.rows[blockIdx.y];
  copy_pool((T*)mine[0], pool, count, (u32)mine[1], period);
}

KERNEL generate_1(u8* out, const u8* pool, u64 count, u32 offset, u32 period) {
  copy_pool(out, pool, count, offset, period);
}
KERNEL generate_2(u16* out, const u16* pool, u64 count, u32 offset, u32 period) {
  copy_pool(out, pool, count, offset, period);
}
KERNEL generate_4(u32* out, const u32* pool, u64 count, u32 offset, u32 period) {
  copy_pool(out, pool, count, offset, period);
}
KERNEL generate_8(u64* out, const u64* pool, u64 count, u32 offset, u32 period) {
  copy_pool(out, pool, count, offset, period);
}
KERNEL generate_all_1(const Table table, const u8* pool, u64 count, u32 period) {
  copy_pool_all(table, pool, count, period);
}
KERNEL generate_all_2(const Table table, const u16* pool, u64 count, u32 period) {
  copy_pool_all(table, pool, count, period);
}
KERNEL generate_all_4(const Table table, const u32* pool, u64 count, u32 period) {
  copy_pool_all(table, pool, count, period);
}
KERNEL generate_all_8(const Table table, const u64* pool, u64 count, u32 period) {
  copy_pool_all(table, pool, count, period);
}

// Outputs of one size and the guards around them. A row of the table is where the first guard
// begins and the bytes of both guards; the output between them is aligned to 256 bytes.
KERNEL poison_all(const Table table, u64 nbytes, u32 byte, u32 guard) {
  const u64* mine = table.rows[blockIdx.y];
  const u64 before = mine[1] >> 32, after = mine[1] & 0xffffffffull;
  u8* first = (u8*)mine[0];
  u8* data = first + before;
  const u64 step = (u64)gridDim.x * blockDim.x;
  const u64 start = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  const u64 pattern = byte * 0x0101010101010101ull, words = nbytes / 8;
  for (u64 i = start; i < words; i += step) ((u64*)data)[i] = pattern;
  for (u64 i = 8 * words + start; i < nbytes; i += step) data[i] = (u8)byte;
  for (u64 i = start; i < before; i += step) first[i] = (u8)guard;
  for (u64 i = start; i < after; i += step) data[nbytes + i] = (u8)guard;
}

// Elements that are no longer what copy_pool wrote, counted for each row of the table.
template <typename T>
__device__ void count_changed(const Table& table, const T* pool, u64 count, u32 period,
                              u64* found) {
  const u32 size = Group<T>::size;
  const T* data = (const T*)table.rows[blockIdx.y][0];
  const u64 offset = table.rows[blockIdx.y][1];
  const u64 step = (u64)gridDim.x * blockDim.x, groups = count / size;
  const u32 hop = (u32)(step * size % period);
  const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  u32 at = (u32)((offset + first * size) % period);
  u64 mine = 0;
  for (u64 i = first; i < groups; i += step) {
    const Group<T> wanted = pool_group(pool, at, period);
    Group<T> have;
    have.bits = ((const u64*)data)[i];
    if (have.bits != wanted.bits) {
#pragma unroll
      for (u32 j = 0; j < size; ++j) mine += have.element[j] != wanted.element[j];
    }
    at += hop;
    if (at >= period) at -= period;
  }
  const u64 last = groups * size + first;
  if (last < count) mine += data[last] != pool[(offset + last) % period];
  if (mine) atomicAdd(found + blockIdx.y, mine);
}

KERNEL changed_1(const Table table, const u8* pool, u64 count, u32 period, u64* found) {
  count_changed(table, pool, count, period, found);
}
KERNEL changed_2(const Table table, const u16* pool, u64 count, u32 period, u64* found) {
  count_changed(table, pool, count, period, found);
}
KERNEL changed_4(const Table table, const u32* pool, u64 count, u32 period, u64* found) {
  count_changed(table, pool, count, period, found);
}
KERNEL changed_8(const Table table, const u64* pool, u64 count, u32 period, u64* found) {
  count_changed(table, pool, count, period, found);
}

// Outputs as poison_all leaves them: for each row of its table, the elements whose every byte is
// `byte`, which were never written, and the bytes of the guards that are intact.
template <typename T>
__device__ void inspect_rows(const Table& table, u64 count, u64 nbytes, u32 byte, u32 guard,
                             u64* found) {
  const u64* row = table.rows[blockIdx.y];
  const u64 before = row[1] >> 32, after = row[1] & 0xffffffffull;
  const u8* begin = (const u8*)row[0];
  const T* data = (const T*)(begin + before);
  const u8* end = begin + before + nbytes;
  const u32 size = Group<T>::size;
  const u64 step = (u64)gridDim.x * blockDim.x, groups = count / size;
  const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  Group<T> wanted;
  wanted.bits = byte * 0x0101010101010101ull;
  u64 same = 0, intact = 0;
  for (u64 i = first; i < groups; i += step) {
    Group<T> have;
    have.bits = ((const u64*)data)[i];
#pragma unroll
    for (u32 j = 0; j < size; ++j) same += have.element[j] == wanted.element[0];
  }
  const u64 last = groups * size + first;
  if (last < count) same += data[last] == wanted.element[0];
  for (u64 i = first; i < before; i += step) intact += begin[i] == (u8)guard;
  for (u64 i = first; i < after; i += step) intact += end[i] == (u8)guard;
  if (same) atomicAdd(found + 2 * blockIdx.y, same);
  if (intact) atomicAdd(found + 2 * blockIdx.y + 1, intact);
}

#define INSPECT(WIDTH, T)                                                                          \
  KERNEL inspect_##WIDTH(const Table table, u64 count, u64 nbytes, u32 byte, u32 guard, u64* f) {  \
    inspect_rows<T>(table, count, nbytes, byte, guard, f);                                         \
  }
INSPECT(1, u8)
INSPECT(2, u16)
INSPECT(4, u32)
INSPECT(8, u64)

template <typename T>
__device__ void gather(T* out, const T* data, const u64* where, u32 count) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = data[where[i]];
}

KERNEL gather_1(u8* o, const u8* d, const u64* w, u32 n) { gather(o, d, w, n); }
KERNEL gather_2(u16* o, const u16* d, const u64* w, u32 n) { gather(o, d, w, n); }
KERNEL gather_4(u32* o, const u32* d, const u64* w, u32 n) { gather(o, d, w, n); }
KERNEL gather_8(u64* o, const u64* d, const u64* w, u32 n) { gather(o, d, w, n); }

// One pair of clocks for each unit: core clocks of different units do not compare.
KERNEL stamp(u64* out, u32 units) {
  const u32 unit = unit_id();
  if (threadIdx.x == 0 && unit < units) {
#ifdef NO_CORE_CLOCK
    out[2 * unit] = 0;  // a clock that stands still is none
#else
    out[2 * unit] = core_clock();
#endif
    out[2 * unit + 1] = wall_clock();
  }
}

// Holds the stream until the host opens the gate; gives up by itself, so that nothing can hang.
KERNEL gate(volatile u32* open, u64 most_cycles) {
  const u64 start = core_clock();
  while (!*open && core_clock() - start < most_cycles) {
  }
}

// Busy for a known number of core cycles: what timers are checked against.
KERNEL spin(u64 cycles) {
  const u64 start = core_clock();
  while (core_clock() - start < cycles) {
  }
}

// Blocks that end in a random order, which moves the block scheduler.
KERNEL disturb(u32 seed, u32 most_cycles) {
  u32 h = blockIdx.x * 0x9e3779b1u + seed;
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  const u64 cycles = (h ^ (h >> 16)) % most_cycles;
  const u64 start = core_clock();
  while (core_clock() - start < cycles) {
  }
}

KERNEL nothing() {}

// Reads everything once, so that the last-level cache holds nothing else.
KERNEL evict(const u64* data, u64 count, u64* sink) {
  u64 sum = 0;
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) sum += data[i];
  if (sum == 0x123456789abcdefull) *sink = sum;
}

// Strain: traffic and arithmetic that stand for the rest of a model around a kernel.
KERNEL strain_bandwidth(float4* data, u64 count) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    float4 v = data[i];
    v.x += 1.0f;
    data[i] = v;
  }
}

// Power goes with the bits that change, so values must neither overflow nor settle. Squares less
// 1.9 and the like stay within ±1.9 and keep leaping about.
KERNEL strain_compute(float* sink, u32 rounds) {
  float a = threadIdx.x * 1e-3f, b = a - 0.25f, c = a - 0.5f, d = a - 0.75f;
  for (u32 r = 0; r < rounds; ++r) {
    a = a * a - 1.9f;
    b = b * b - 1.8f;
    c = c * c - 1.7f;
    d = d * d - 1.6f;
  }
  if (a + b + c + d == 42.0f) *sink = a;
}
