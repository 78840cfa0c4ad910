// Inputs from a secret key: the values of judge/values.py, bit for bit.
//
// Philox4x64-10 as NumPy's Philox.random_raw: block i of a stream has the counter (i + 1, 0,
// number, 0). A thread makes a block of 32 bytes: 16 indices of a table of values, or 8 floats.

struct Table {
  u64 rows[64][2];  // the address of a tensor, and the number of its values
};

struct Block {
  u64 word[4];
};

// By parts: NVRTC has 128-bit integers only on request.
__device__ inline u64 high_half(u64 a, u64 b) {
  const u64 a0 = (u32)a, a1 = a >> 32, b0 = (u32)b, b1 = b >> 32;
  const u64 low = a1 * b0 + (a0 * b0 >> 32);
  const u64 high = a0 * b1 + (u32)low;
  return a1 * b1 + (low >> 32) + (high >> 32);
}

__device__ inline Block philox(u64 block, u64 number, u64 key0, u64 key1) {
  const u64 mul0 = 0xD2E7470EE14C6C93ull, mul1 = 0xCA5A826395121157ull;
  u64 c0 = block + 1, c1 = 0, c2 = number, c3 = 0;
#pragma unroll
  for (u32 round = 0; round < 10; ++round) {
    const u64 next0 = high_half(mul1, c2) ^ c1 ^ key0;
    const u64 next2 = high_half(mul0, c0) ^ c3 ^ key1;
    c1 = mul1 * c2;
    c3 = mul0 * c0;
    c0 = next0;
    c2 = next2;
    key0 += 0x9E3779B97F4A7C15ull;
    key1 += 0xBB67AE8584CAA73Bull;
  }
  Block made;
  made.word[0] = c0;
  made.word[1] = c1;
  made.word[2] = c2;
  made.word[3] = c3;
  return made;
}

// Values of formats of up to 16 bits, by index.
template <typename T>
struct Indexed {
  enum { size = 16 };
  typedef T Item;
  const T* table;
  __device__ T operator()(const Block& block, u32 i) const {
    return table[(u32)(block.word[i / 4] >> (16 * (i % 4))) & 0xffffu];
  }
};

// Floats of 24 random bits. `scale` is a power of two: the product is exact, so that a fused
// multiply-add rounds as the two operations of the host do.
struct Scaled {
  enum { size = 8 };
  typedef float Item;
  float scale, low;
  __device__ float operator()(const Block& block, u32 i) const {
    const u32 bits = (u32)(block.word[i / 2] >> (32 * (i % 2)));
    return (float)(bits >> 8) * scale + low;
  }
};

template <typename Maker>
__device__ void write_secret(const Table& table, Maker maker, u64 count, u64 key0, u64 key1) {
  typedef typename Maker::Item Item;
  Item* data = (Item*)table.rows[blockIdx.y][0];
  const u64 number = table.rows[blockIdx.y][1], step = (u64)gridDim.x * blockDim.x;
  const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  for (u64 i = first; i * Maker::size < count; i += step) {
    const Block block = philox(i, number, key0, key1);
    Item* mine = data + i * Maker::size;
    if ((i + 1) * Maker::size <= count && (u64)mine % 8 == 0) {
      const u32 width = 8 / sizeof(Item);
#pragma unroll
      for (u32 w = 0; w < Maker::size / width; ++w) {
        union {
          u64 bits;
          Item item[width];
        } group;
#pragma unroll
        for (u32 j = 0; j < width; ++j) group.item[j] = maker(block, w * width + j);
        ((u64*)mine)[w] = group.bits;
      }
    } else {
      for (u32 j = 0; j < Maker::size && i * Maker::size + j < count; ++j)
        mine[j] = maker(block, j);
    }
  }
}

// Elements that are no longer what write_secret wrote, counted for each row of the table.
template <typename Maker>
__device__ void count_altered(const Table& table, Maker maker, u64 count, u64 key0, u64 key1,
                              u64* found) {
  typedef typename Maker::Item Item;
  const Item* data = (const Item*)table.rows[blockIdx.y][0];
  const u64 number = table.rows[blockIdx.y][1], step = (u64)gridDim.x * blockDim.x;
  const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  u64 mine = 0;
  for (u64 i = first; i * Maker::size < count; i += step) {
    const Block block = philox(i, number, key0, key1);
    const u64 left = count - i * Maker::size;
    const u32 most = left < Maker::size ? (u32)left : (u32)Maker::size;
    for (u32 j = 0; j < most; ++j) mine += data[i * Maker::size + j] != maker(block, j);
  }
  if (mine) atomicAdd(found + blockIdx.y, mine);
}

KERNEL secret_1(const Table table, const u8* values, u64 count, u64 key0, u64 key1) {
  Indexed<u8> maker;
  maker.table = values;
  write_secret(table, maker, count, key0, key1);
}
KERNEL secret_2(const Table table, const u16* values, u64 count, u64 key0, u64 key1) {
  Indexed<u16> maker;
  maker.table = values;
  write_secret(table, maker, count, key0, key1);
}
KERNEL secret_4(const Table table, float scale, float low, u64 count, u64 key0, u64 key1) {
  Scaled maker;
  maker.scale = scale;
  maker.low = low;
  write_secret(table, maker, count, key0, key1);
}
KERNEL altered_1(const Table table, const u8* values, u64 count, u64 key0, u64 key1, u64* found) {
  Indexed<u8> maker;
  maker.table = values;
  count_altered(table, maker, count, key0, key1, found);
}
KERNEL altered_2(const Table table, const u16* values, u64 count, u64 key0, u64 key1, u64* found) {
  Indexed<u16> maker;
  maker.table = values;
  count_altered(table, maker, count, key0, key1, found);
}
KERNEL altered_4(const Table table, float scale, float low, u64 count, u64 key0, u64 key1,
                 u64* found) {
  Scaled maker;
  maker.scale = scale;
  maker.low = low;
  count_altered(table, maker, count, key0, key1, found);
}
