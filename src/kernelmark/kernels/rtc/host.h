// The names of common.h and micro.h for the host's C++ compiler: a grid is one block a thread of
// the operating system, a block is one thread, a vector is as wide as the CPU's registers.
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define HOST 1
#define KERNEL extern "C" void
#define DEVICE inline
#define GLOBAL
#define LANES 1
#define __global__
#define __device__
#define __shared__ static thread_local
#define BLOCK_OF(threads)
#define __syncthreads()

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
typedef u32 quad __attribute__((vector_size(VECTOR_BYTES)));
typedef float real4 __attribute__((vector_size(VECTOR_BYTES)));
typedef double pair __attribute__((vector_size(VECTOR_BYTES)));

struct Index {
  u32 x;
};
static thread_local Index blockIdx;
static Index gridDim;
static const Index threadIdx = {0}, blockDim = {1};

// Nanoseconds: there is no portable core clock on a CPU.
DEVICE u64 wall_clock() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
}
DEVICE u64 core_clock() { return wall_clock(); }
DEVICE u32 unit_id() { return blockIdx.x; }

template <typename V, typename T>
DEVICE T fold_lanes(V v, T sum) {
  for (u32 i = 0; i < sizeof(V) / sizeof(T); ++i) sum += v[i];
  return sum;
}
DEVICE u32 fold(quad v) { return fold_lanes(v, (u32)0); }
DEVICE double fold(pair v) { return fold_lanes(v, 0.0); }
DEVICE float fold(real4 v) { return fold_lanes(v, 0.0f); }
DEVICE pair spread(double q) { return q - pair{}; }
DEVICE real4 spread4(float q) { return q - real4{}; }
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
DEVICE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
DEVICE float fused(float a, float b, float c) { return a * b + c; }
DEVICE double fused(double a, double b, double c) { return a * b + c; }
#endif

typedef quad Total;
#define TOTALS 8
DEVICE void gather(Total& total, quad v) { total += v; }
DEVICE u32 finish(Total total) { return fold(total); }

struct Walk {
  u64 first, end;
  enum { step = 1 };
};
DEVICE Walk walk(u64 count) {
  return Walk{count * blockIdx.x / gridDim.x, count * (blockIdx.x + 1) / gridDim.x};
}
struct Tiles {
  u64 first, end;
  enum { near = 1 };
  u64 step;
};
template <u32 COUNT>
DEVICE Tiles tiles(u64 count) {
  const Walk w = walk(count);
  return Tiles{w.first, w.end, COUNT};
}
DEVICE u64 thread_number() { return blockIdx.x; }
DEVICE u64 start_block() { return core_clock(); }
#define STAMPS 1
DEVICE void stop_block(u64* clocks, u64 begin, u64*) {
  clocks[2 * blockIdx.x] = begin;
  clocks[2 * blockIdx.x + 1] = core_clock();
}

// -- what runs a kernel: pinned threads that start together, each with a clock around its work

typedef void (*Entry)(void**);
struct Task {
  Entry entry;
  void*** arguments;
  int sets;
  u32 index;
  int cpu, launches, passes, pinned;
  pthread_barrier_t* barrier;
  u64* times;
};

static u64 thread_clock() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
}

static void* host_work(void* given) {
  Task* task = (Task*)given;
  blockIdx.x = task->index;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (task->cpu >= 0 && task->cpu < CPU_SETSIZE) CPU_SET(task->cpu, &set);
  task->pinned = pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
  for (int p = 0; p < task->passes; ++p) {
    void** arguments = task->arguments[p % task->sets];
    pthread_barrier_wait(task->barrier);
    const u64 before = thread_clock();
    task->times[3 * p] = wall_clock();
    for (int n = 0; n < task->launches; ++n) task->entry(arguments);
    task->times[3 * p + 1] = wall_clock();
    task->times[3 * p + 2] = thread_clock() - before;
  }
  return 0;
}

// Passes of `launches` each, every one from a barrier; pass p has the arguments of set p % sets.
// `times` takes, for each thread and pass, the nanoseconds at its beginning and its end, and those
// in which it had its core. -1 when threads are short, else how many threads have a core of their
// own.
extern "C" int host_run(Entry entry, void*** arguments, int sets, int threads, const int* cpus,
                        int launches, int passes, u64* times) {
  Task* tasks = (Task*)calloc((size_t)threads, sizeof(Task));
  pthread_t* handles = (pthread_t*)calloc((size_t)threads, sizeof(pthread_t));
  pthread_barrier_t barrier;
  if (!tasks || !handles) return -1;
  pthread_barrier_init(&barrier, 0, (unsigned)threads);
  gridDim.x = (u32)threads;
  for (int t = 0; t < threads; ++t) {
    tasks[t] = Task{entry,  arguments, sets, (u32)t,   cpus[t],
                    launches, passes,  0,    &barrier, times + (size_t)t * 3 * (size_t)passes};
    // The threads before it wait at the barrier for ever: what they use must stay.
    if (pthread_create(&handles[t], 0, host_work, &tasks[t])) return -1;
  }
  int own = 0;
  for (int t = 0; t < threads; ++t) {
    pthread_join(handles[t], 0);
    int shared = !tasks[t].pinned;
    for (int other = 0; other < threads; ++other) shared |= other != t && cpus[other] == cpus[t];
    own += !shared;
  }
  pthread_barrier_destroy(&barrier);
  free(tasks);
  free(handles);
  return own;
}
extern "C" int host_vector_bytes() { return VECTOR_BYTES; }
