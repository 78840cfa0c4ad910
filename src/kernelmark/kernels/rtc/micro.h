// What the microbenchmarks share on a GPU. host.h gives the same names to the host's own compiler,
// where a kernel runs as one block of one thread a core.
#define DEVICE __device__ __forceinline__

#if defined(__HIP_DEVICE_COMPILE__) || defined(__HIP__) || defined(__HIP_PLATFORM_AMD__)
#define AMD 1
typedef u32 quad __attribute__((ext_vector_type(4)));
typedef float real4 __attribute__((ext_vector_type(4)));
typedef double pair __attribute__((ext_vector_type(2)));
#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
#define LANES 32
#else
#define LANES 64
#endif
#define GLOBAL __attribute__((address_space(1)))
#define BLOCK_OF(threads) __launch_bounds__(threads)
DEVICE void fence_device() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
DEVICE u32 compare_swap(u32* place, u32 old, u32 fresh) {
  __hip_atomic_compare_exchange_strong(place, &old, fresh, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return old;
}
DEVICE u32 read_fresh(u32* place) {
  return __hip_atomic_load(place, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
DEVICE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
#define NVIDIA 1
typedef uint4 quad;
typedef float4 real4;
typedef double2 pair;
#define LANES 32
#define GLOBAL
// One block a unit is enough: registers are better spent on loads in flight than on more threads.
#define BLOCK_OF(threads) __launch_bounds__(threads, 1)
DEVICE void fence_device() { __threadfence(); }
DEVICE u32 compare_swap(u32* place, u32 old, u32 fresh) { return atomicCAS(place, old, fresh); }
DEVICE u32 read_fresh(u32* place) { return *(volatile u32*)place; }
DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE double fused(double a, double b, double c) { return fma(a, b, c); }

DEVICE pair operator+(pair a, pair b) { return make_double2(a.x + b.x, a.y + b.y); }
DEVICE pair operator*(pair a, pair b) { return make_double2(a.x * b.x, a.y * b.y); }
DEVICE pair operator*(double q, pair b) { return make_double2(q * b.x, q * b.y); }
DEVICE real4 operator+(real4 a, real4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
DEVICE real4 operator*(real4 a, real4 b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
#endif

DEVICE u32 fold(quad v) { return (v.x + v.y) + (v.z + v.w); }
DEVICE double fold(pair v) { return v.x + v.y; }
DEVICE float fold(real4 v) { return (v.x + v.y) + (v.z + v.w); }
DEVICE pair spread(double q) {
  pair v;
  v.x = q;
  v.y = q;
  return v;
}
DEVICE real4 spread4(float q) {
  real4 v;
  v.x = q;
  v.y = q;
  v.z = q;
  v.w = q;
  return v;
}
// Sums of what was read. A CPU needs several to hide the latency of an add, a GPU has its warps.
typedef u32 Total;
#define TOTALS 1
DEVICE void gather(Total& total, quad v) { total += fold(v); }
DEVICE u32 finish(Total total) { return total; }

// The elements that this thread takes of `count`: every `step`-th from `first` on.
struct Walk {
  u64 first, end, step;
};
DEVICE Walk walk(u64 count) {
  Walk w;
  w.first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  w.end = count;
  w.step = (u64)gridDim.x * blockDim.x;
  return w;
}
DEVICE u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
// The same in groups of COUNT elements that a thread takes at once: a warp's group is one piece of
// memory. Blocks are whole warps.
struct Tiles {
  u64 first, end, step;
  enum { near = LANES };
};
template <u32 COUNT>
DEVICE Tiles tiles(u64 count) {
  Tiles t;
  t.first = thread_number() / LANES * (COUNT * LANES) + threadIdx.x % LANES;
  t.end = count;
  t.step = (u64)gridDim.x * blockDim.x * COUNT;
  return t;
}

// The core clock at both ends of a block's work, from its first warp's beginning to its last one's
// end. No single warp will do: one may be kept from its work by the others, or be done long before
// them, and a barrier need not hold back the reading of a clock.
DEVICE u64 start_block() {
  __syncthreads();
  return core_clock();
}
// `room` is STAMPS words of shared memory that the work no longer needs.
#define STAMPS 64
DEVICE void stop_block(u64* clocks, u64 begin, u64* room) {
  const u64 end = core_clock();
  __syncthreads();
  if (threadIdx.x % LANES == 0) {
    room[threadIdx.x / LANES * 2] = begin;
    room[threadIdx.x / LANES * 2 + 1] = end;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  u64 first = room[0], last = room[1];
#pragma unroll 1
  for (u32 w = 1; w < (blockDim.x + LANES - 1) / LANES; ++w) {
    first = room[2 * w] < first ? room[2 * w] : first;
    last = room[2 * w + 1] > last ? room[2 * w + 1] : last;
  }
  // One pair for each block: clocks of different units do not compare.
  clocks[2 * blockIdx.x] = first;
  clocks[2 * blockIdx.x + 1] = last;
}
