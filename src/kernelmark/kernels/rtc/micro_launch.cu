// Small kernels: what starting one costs, and what a step inside one that stays costs.

#ifdef HOST
// Plain launches from the host, with no interpreter between one and the next.
typedef int (*Launch)(void*, u32, u32, u32, u32, u32, u32, u32, void*, void**, void**);
extern "C" int launch_many(Launch launch, void* function, u32 grid, u32 block, void* stream,
                           void** arguments, u32 count) {
  int failed = 0;
  for (u32 i = 0; i < count && !failed; ++i)
    failed = launch(function, grid, 1, 1, block, 1, 1, 0, stream, arguments, 0);
  return failed;
}
#else

KERNEL launch_nothing() {}

KERNEL BLOCK_OF(1024) launch_scale(double* a, const double* b, u32 n) {
  const u32 step = gridDim.x * blockDim.x;
  for (u32 i = (u32)thread_number(); i < n; i += step) a[i] = 0.25 * b[i];
}

// The same from step to step inside one kernel, with a barrier across all blocks in between. All
// blocks must fit on the GPU at once. A block that waits longer than `most` cycles gives up and
// says so in `failed`; the others then give up as well.
KERNEL BLOCK_OF(1024)
launch_persistent(double* a, double* b, u32 n, u32 steps, u32* arrived, u64 most, u32* failed) {
  __shared__ u32 stop;
  const u32 step = gridDim.x * blockDim.x;
  for (u32 s = 0; s < steps; ++s) {
    double* to = s % 2 ? b : a;
    const double* from = s % 2 ? a : b;
    for (u32 i = (u32)thread_number(); i < n; i += step) to[i] = 0.25 * from[i];
    __syncthreads();
    if (threadIdx.x == 0) {
      fence_device();
      atomicAdd(arrived, 1u);
      const u32 wanted = (s + 1) * gridDim.x;
      const u64 begin = core_clock();
      while (read_fresh(arrived) < wanted && core_clock() - begin < most) {
      }
      stop = read_fresh(arrived) < wanted;
      if (stop) *failed = 1;
      fence_device();
    }
    __syncthreads();
    if (stop) return;
  }
}
#endif
