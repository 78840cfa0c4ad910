// What our kernels use of HIP, for a clang without ROCm; see gpu/rtc.py. hipRTC needs none of it.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))

struct kmark_index {
  unsigned x, y, z;
};
#define KMARK_INDEX(what) \
  (kmark_index{__builtin_amdgcn_##what##_x(), __builtin_amdgcn_##what##_y(), \
               __builtin_amdgcn_##what##_z()})
#define KMARK_BLOCKS(axis) \
  ((unsigned)(__builtin_amdgcn_grid_size_##axis() / __builtin_amdgcn_workgroup_size_##axis()))
#define threadIdx KMARK_INDEX(workitem_id)
#define blockIdx KMARK_INDEX(workgroup_id)
#define blockDim KMARK_INDEX(workgroup_size)
#define gridDim (kmark_index{KMARK_BLOCKS(x), KMARK_BLOCKS(y), KMARK_BLOCKS(z)})

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

__device__ inline long long clock64() { return (long long)__builtin_readcyclecounter(); }
#if __has_builtin(__builtin_readsteadycounter)
__device__ inline long long wall_clock64() { return (long long)__builtin_readsteadycounter(); }
#else
__device__ inline long long wall_clock64() { return (long long)__builtin_amdgcn_s_memrealtime(); }
#endif

__device__ inline void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

template <typename T>
__device__ inline T atomicAdd(T* place, T value) {
  return __hip_atomic_fetch_add(place, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
