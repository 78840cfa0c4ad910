// Weighted sums along the rows of tensors, in double precision: what the random projection of a
// whole output is made of. core/contraction.py explains the numbers; devices/_gpu_project.py
// chooses the kernel for which neighbouring threads read neighbouring elements.

// Weights and results: the second number goes with the squares of the elements.
struct alignas(16) Pair {
  double sum, square;
};

// Sizes and steps in elements, rows by columns; group_weight is the weights' step along the first
// row axis. Rows and columns are counted in 32 bits: vectors that long fit no GPU.
struct View {
  u64 size[4], stride[4], result[4];
  u64 cols, col_stride, group_weight;
};

__device__ inline double from_bits(u64 bits) {
  union {
    u64 bits;
    double value;
  } both;
  both.bits = bits;
  return both.value;
}

// A float of few bits, by shifting its exponent and fraction to where a double has them. The
// product corrects the exponent, also of subnormal numbers, and is exact. Codes of magnitudes from
// `special` on are infinite or NaN, which are all the same here.
template <u32 bits, u32 fraction, u32 bias, u32 special>
__device__ inline double small_float(u32 code) {
  const u32 magnitude = code & ((1u << (bits - 1)) - 1u);
  const u64 high = (u64)(code >> (bits - 1)) << 31 | (u64)magnitude << (20 - fraction);
  const double value = from_bits(high << 32) * from_bits((u64)(2046 - bias) << 52);
  return magnitude >= special ? from_bits(0x7ff8000000000000ull) : value;
}
// The fnuz formats have one NaN, where the others have a negative zero.
template <u32 fraction, u32 bias>
__device__ inline double fnuz(u32 code) {
  const double value = small_float<8, fraction, bias, 128>(code);
  return code == 0x80u ? from_bits(0x7ff8000000000000ull) : value;
}

struct f64 {
  typedef double word;
  static __device__ inline double value(word w) { return w; }
};
struct f32 {
  typedef float word;
  static __device__ inline double value(word w) { return (double)w; }
};
struct i32 {
  typedef int word;
  static __device__ inline double value(word w) { return (double)w; }
};
struct i8 {
  typedef signed char word;
  static __device__ inline double value(word w) { return (double)w; }
};
struct f16 {
  typedef u16 word;
  static __device__ inline double value(word w) { return small_float<16, 10, 15, 0x7c00>(w); }
};
struct bf16 {
  typedef u16 word;
  static __device__ inline double value(word w) { return small_float<16, 7, 127, 0x7f80>(w); }
};
struct f8e4m3 {
  typedef u8 word;
  static __device__ inline double value(word w) { return small_float<8, 3, 7, 0x7f>(w); }
};
struct f8e5m2 {
  typedef u8 word;
  static __device__ inline double value(word w) { return small_float<8, 2, 15, 0x7c>(w); }
};
struct f8e4m3fnuz {
  typedef u8 word;
  static __device__ inline double value(word w) { return fnuz<3, 8>(w); }
};
struct f8e5m2fnuz {
  typedef u8 word;
  static __device__ inline double value(word w) { return fnuz<2, 16>(w); }
};

// Where the row of this number, counted from row axis `first` on, is in the tensor and in results.
struct Place {
  u64 element, result, group;
};
__device__ inline Place place_of(const View& view, u32 row, int first) {
  Place place = {0, 0, 0};
#pragma unroll
  for (int axis = 3; axis >= first; --axis) {
    const u32 size = (u32)view.size[axis], rest = axis > first ? row / size : 0;
    const u64 index = row - rest * size;
    row = rest;
    place.element += index * view.stride[axis];
    place.result += index * view.result[axis];
    if (axis == 0) place.group = index;
  }
  return place;
}

__device__ inline void take(Pair& total, const Pair& weight, double value) {
  total.sum += weight.sum * value;
  total.square += weight.square * value * value;
}
__device__ inline void add(Pair* result, const Pair& total, double factor, double square) {
  atomicAdd(&result->sum, factor * total.sum);
  atomicAdd(&result->square, square * total.square);
}

// A thread for each row: for rows that follow each other in memory. Blocks of 256 threads,
// row tiles before chunks of columns.
template <typename T>
__device__ void sum_across(const View& view, const typename T::word* data, const Pair* weights,
                           Pair* result, double factor, double square, u32 chunk) {
  const u32 rows = (u32)(view.size[0] * view.size[1] * view.size[2] * view.size[3]);
  const u32 tiles = (rows + blockDim.x - 1) / blockDim.x;
  const u32 row = blockIdx.x % tiles * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const Place place = place_of(view, row, 0);
  const u32 cols = (u32)view.cols, first = blockIdx.x / tiles * chunk;
  const u32 count = chunk < cols - first ? chunk : cols - first;
  data += place.element + first * view.col_stride;
  weights += place.group * view.group_weight + first;
  Pair total = {0.0, 0.0};
#pragma unroll 8
  for (u32 col = 0; col < count; ++col) {
    take(total, weights[col], T::value(*data));
    data += view.col_stride;
  }
  add(result + place.result, total, factor, square);
}

// 32 threads for each row: for columns that follow each other in memory. A block of 256 has a tile
// of 32 rows of one group, so that four rows share each weight that a thread reads.
#define LINES 8
#define SHARING 4
template <typename T>
__device__ void sum_along(const View& view, const typename T::word* data, const Pair* weights,
                          Pair* result, double factor, double square, u32 chunk) {
  const u32 lane = threadIdx.x % 32u, line = threadIdx.x / 32u;
  const u32 rows = (u32)(view.size[1] * view.size[2] * view.size[3]);
  const u32 cols = (u32)view.cols, chunks = (cols + chunk - 1) / chunk;
  const u32 tiles = (rows + LINES * SHARING - 1) / (LINES * SHARING);
  const u32 tile = blockIdx.x / chunks % tiles, group = blockIdx.x / chunks / tiles;
  const u32 first = blockIdx.x % chunks * chunk;
  const u32 end = chunk < cols - first ? first + chunk : cols;
  weights += group * view.group_weight;
  data += group * view.stride[0];
  result += group * view.result[0];
  const typename T::word* lines[SHARING];
  Pair totals[SHARING];
#pragma unroll
  for (int i = 0; i < SHARING; ++i) {
    const u32 row = tile * (LINES * SHARING) + i * LINES + line;
    // Rows beyond the last read the last one and add nothing.
    lines[i] = data + place_of(view, row < rows ? row : rows - 1, 1).element;
    totals[i] = {0.0, 0.0};
  }
  // Steps are counted so that the loop unrolls: loads of several steps are under way at once.
  const u32 steps = end > first + lane ? (end - first - lane + 31) / 32 : 0;
  u32 col = first + lane;
#pragma unroll 4
  for (u32 step = 0; step < steps; ++step, col += 32) {
    const Pair weight = weights[col];
#pragma unroll
    for (int i = 0; i < SHARING; ++i) take(totals[i], weight, T::value(lines[i][col]));
  }
  __shared__ Pair parts[SHARING][LINES * 32];
#pragma unroll
  for (int i = 0; i < SHARING; ++i) parts[i][threadIdx.x] = totals[i];
#pragma unroll 1
  for (u32 half = 16; half; half /= 2) {
    __syncthreads();
    if (lane < half) {
#pragma unroll 1
      for (int i = 0; i < SHARING; ++i) {
        parts[i][threadIdx.x].sum += parts[i][threadIdx.x + half].sum;
        parts[i][threadIdx.x].square += parts[i][threadIdx.x + half].square;
      }
    }
  }
  // The first threads of a line add one of its rows each.
  const u32 row = tile * (LINES * SHARING) + lane * LINES + line;
  __syncthreads();
  if (lane < SHARING && row < rows) {
    const Place place = place_of(view, row, 1);
    add(result + place.result, parts[lane][line * 32], factor, square);
  }
}

// Signs as weights, from a byte each: sixteen times fewer bytes come from the host.
KERNEL signs(const signed char* sign, Pair* weights, u32 count) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) weights[i] = {(double)sign[i], 1.0};
}

#define PROJECT(NAME)                                                                              \
  KERNEL across_##NAME(const View view, const NAME::word* data, const Pair* weights, Pair* result, \
                       double factor, double square, u32 chunk) {                                  \
    sum_across<NAME>(view, data, weights, result, factor, square, chunk);                          \
  }                                                                                                \
  KERNEL along_##NAME(const View view, const NAME::word* data, const Pair* weights, Pair* result,  \
                      double factor, double square, u32 chunk) {                                   \
    sum_along<NAME>(view, data, weights, result, factor, square, chunk);                           \
  }

PROJECT(f64)
PROJECT(f32)
PROJECT(i32)
PROJECT(i8)
PROJECT(f16)
PROJECT(bf16)
PROJECT(f8e4m3)
PROJECT(f8e5m2)
PROJECT(f8e4m3fnuz)
PROJECT(f8e5m2fnuz)
